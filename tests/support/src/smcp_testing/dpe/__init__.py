"""Documents as Markdown and as text, as MCP servers render them (finder.txt): for our test servers."""
