"""The manifests of deploy/k8s, rendered, and held against the code."""
