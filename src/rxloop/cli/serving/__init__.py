"""What `rxloop serve` is made of."""
