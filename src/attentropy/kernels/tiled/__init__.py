"""The tiled kernel in torch: any device, any dtype, every option."""
