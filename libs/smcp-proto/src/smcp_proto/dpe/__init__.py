"""Elements, pages and documents as Markdown and as plain text (finder.txt, Markdown 渲染规则)."""

from smcp_proto.dpe.answers import in_format as in_format
from smcp_proto.dpe.answers import not_in_format as not_in_format
from smcp_proto.dpe.answers import unknown_categories as unknown_categories
from smcp_proto.dpe.markdown import element_markdown as element_markdown
from smcp_proto.dpe.markdown import page_markdown as page_markdown
from smcp_proto.dpe.text import element_text as element_text
from smcp_proto.dpe.text import page_text as page_text
