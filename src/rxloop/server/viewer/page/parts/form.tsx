// Fields of a form that was made from a JSON schema.

import type { ComponentChildren } from 'preact';
import { useId } from 'preact/hooks';
import { join, makeDraft, replaceAt, toLabel, type Draft, type Field } from '../act.ts';
import { toLine } from '../text.ts';
import { Json } from './json.tsx';

interface Props {
  field: Field;
  draft: Draft;
  path: string;
  errors: ReadonlyMap<string, string>;
  /** Name for fields without a title. */
  label?: string;
  onChange: (draft: Draft) => void;
}

export function FormField(props: Props) {
  const { field } = props;
  return field.kind === 'object' ? <ObjectFields {...props} /> : field.kind === 'list' ? <Items {...props} /> : <Labelled {...props} />;
}

function nameOf({ field, label }: Props): string {
  return toLine(field.title || label || 'Answer');
}

function ObjectFields(props: Props) {
  const { field, draft, path, errors, onChange } = props;
  const parts = draft as Draft[];
  const children = field.fields.map((each, k) => (
    <FormField key={each.name} field={each} draft={parts[k]} path={join(path, each.name)} errors={errors} onChange={next => onChange(replaceAt(parts, k, next))} />
  ));
  if (!path) return <>{children}<Fault text={errors.get(path)} /></>;
  return <Group {...props}>{children}</Group>;
}

function Items(props: Props) {
  const { field, draft, path, errors, onChange } = props;
  const items = draft as Draft[];
  return (
    <Group {...props}>
      {items.map((each, k) => (
        <div class="item" key={k}>
          <FormField field={field.item!} draft={each} path={`${path}[${k}]`} errors={errors} label={`${nameOf(props)} ${k + 1}`} onChange={next => onChange(replaceAt(items, k, next))} />
          <button type="button" class="plain" aria-label={`Remove ${nameOf(props)} ${k + 1}`} onClick={() => onChange(items.filter((_, other) => other !== k))}>✕</button>
        </div>
      ))}
      <button type="button" onClick={() => onChange([...items, makeDraft(field.item!)])}>Add to {nameOf(props)}</button>
    </Group>
  );
}

function Group({ children, ...props }: Props & { children: ComponentChildren }) {
  return (
    <fieldset>
      <legend><bdi>{nameOf(props)}</bdi>{!props.field.isRequired && <small>optional</small>}</legend>
      {props.field.hint && <p class="quiet"><bdi>{toLine(props.field.hint)}</bdi></p>}
      {children}
      <Fault text={props.errors.get(props.path)} />
    </fieldset>
  );
}

function Labelled(props: Props) {
  const { field, path, errors } = props;
  const id = useId();
  const error = errors.get(path);
  return (
    <div class="field">
      <label for={id}><bdi>{nameOf(props)}</bdi>{!field.isRequired && <small>optional</small>}</label>
      {field.hint && <p class="quiet"><bdi>{toLine(field.hint)}</bdi></p>}
      <Control {...props} id={id} />
      {field.kind === 'json' && Object.keys(field.schema).length > 0 && <details><summary>Schema</summary><div class="block mono"><Json value={field.schema} /></div></details>}
      <Fault text={error} id={`${id}-error`} />
    </div>
  );
}

function Control({ field, draft, path, errors, onChange, id }: Props & { id: string }) {
  const isInvalid = errors.has(path);
  const common = { id, 'aria-invalid': isInvalid, 'aria-describedby': isInvalid ? `${id}-error` : undefined, 'aria-required': field.isRequired, 'data-path': path };
  const text = String(draft);
  const onInput = (event: { currentTarget: { value: string } }) => onChange(event.currentTarget.value);
  switch (field.kind) {
    case 'boolean':
    case 'choice': {
      const options = field.kind === 'boolean' ? [['true', 'yes'], ['false', 'no']] : field.options.map((each, k) => [String(k), toLabel(each)]);
      return (
        <select {...common} value={text} onChange={onInput}>
          <option value="">{field.isRequired ? 'choose…' : 'not set'}</option>
          {options.map(([value, label]) => <option key={value} value={value}>{toLine(label)}</option>)}
        </select>
      );
    }
    case 'number': return <input {...common} type="text" inputMode="decimal" value={text} onInput={onInput} />;
    case 'text':
      return path && (field.schema.maxLength ?? 100) <= 200
        ? <input {...common} type="text" value={text} onInput={onInput} />
        : <textarea {...common} rows={path ? 2 : 3} value={text} onInput={onInput} />;
    default: return <textarea {...common} class="mono" rows={4} spellcheck={false} value={text} onInput={onInput} />;
  }
}

export function Fault({ text, id }: { text?: string; id?: string }) {
  return text ? <p class="fault" id={id} role="alert">✕ <bdi>{toLine(text)}</bdi></p> : null;
}
