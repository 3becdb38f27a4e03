"""Programs in, native text out."""
