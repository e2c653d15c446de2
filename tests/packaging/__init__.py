"""What is shipped: wheels and images."""
