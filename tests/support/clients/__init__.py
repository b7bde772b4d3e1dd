"""Official protocol clients and servers for them."""
