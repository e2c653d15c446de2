"""Who is in which office: any number of registries over JetStream KV."""
