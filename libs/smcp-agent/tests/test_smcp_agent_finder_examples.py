"""The code examples of finder.txt ("Agent 端导航"), as they stand there, against both kinds of Computers."""

import ast
import contextlib
import inspect
import io
import textwrap
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from smcp_agent import SmcpAgent
from smcp_testing.computer_world import native_computer
from smcp_testing.context_computer import PAGE_HOST, ContextComputer, page_documents, page_shelf
from smcp_testing.gateway_world import connected, gateway_world
from smcp_testing.mcp_servers.configs import context
from smcp_testing.mcp_servers.context_tools import ContextTools
from smcp_testing.mcp_servers.shelf import Shelf

COMPUTER = "my-computer"
REPORT = f"dpe://{PAGE_HOST}/rpt-2026"

STEP_1 = """
finder_ret = await agent.get_finder(computer="my-computer")
for doc in finder_ret["documents"]:
    print(f"{doc['title']}: {doc['page_count']} 页")
# → "2026 年度报告: 12 页"
# → "A1 合同: 5 页"
"""
STEP_2 = """
# 仅元数据(默认 depth=metadata)
doc = await agent.read_resource(
    computer="my-computer",
    uri="dpe://com.example.docs/rpt-2026"
)
page_count = doc["page_count"] # 12 → 有效页码范围: 0 ~ 11
# 元数据 + 页面索引
doc = await agent.read_resource(
    computer="my-computer",
    uri="dpe://com.example.docs/rpt-2026?depth=pages&offset=0&limit=10"
)
for page in doc["pages"]:
    print(f" 第 {page['page_index']} 页: {page['title']} ({page['element_count']} 元素)")
# → " 第 0 页: 概览 (8 元素)"
# → " 第 1 页: 收入分析 (15 元素)"
"""
STEP_3_MARKDOWN = """
# 读取第 0 页(Markdown 格式)
page = await agent.read_resource(
    computer="my-computer",
    uri="dpe://com.example.docs/rpt-2026/pages/0?format=markdown"
)
"""
STEP_3_TABLES = """
# 仅获取表格类元素
page = await agent.read_resource(
    computer="my-computer",
    uri="dpe://com.example.docs/rpt-2026/pages/0?categories=table,pivot_table"
)
for elem in page["elements"]:
    print(f" [{elem['category']}] {elem['element_id']}: {elem['summary']}")
# → " [table] tbl-001: 季度收入对比表(4行3列)"
"""
STEP_4 = """
element = await agent.read_resource(
    computer="my-computer",
    uri="dpe://com.example.docs/rpt-2026/elements/tbl-001"
)
# element["content"] → 完整表格数据(headers + rows)
# element["metadata"] → {"source_range": "A1:C5", "has_formulas": true}
"""
ALL_PAGES = """
# 1. 获取文档目录
finder_ret = await agent.get_finder(computer="my-computer")
doc = finder_ret["documents"][0] # 选择第一个文档
# 2. 已知 page_count,遍历所有页面
for i in range(doc["page_count"]):
    page = await agent.read_resource(
        computer="my-computer",
        uri=f"{doc['uri']}/pages/{i}?format=markdown"
    )
    print(f"--- 第 {i} 页: {page.get('title', '')} ---")
    print(page.get("content_markdown", ""))
"""
OWN_TOOL = """
# without the page's `@agent.internal_tool("browse_document")`, which stands for whatever an Agent has
async def browse_document(uri: str, page: int = 0):
    \"\"\"浏览文档指定页面\"\"\"
    page_uri = f"{uri}/pages/{page}?format=markdown"
    return await agent.read_resource(computer="my-computer", uri=page_uri)
"""


@asynccontextmanager
async def navigating(nats_url: str) -> AsyncIterator[SmcpAgent]:
    """An Agent in an office with `my-computer`, which holds the documents of the page; they are on two gateways."""
    computer = ContextComputer(COMPUTER, shelf=page_shelf())
    async with gateway_world(nats_url, gateways=2) as world, connected(world.gateways[1].url) as client:
        computer.serve_all(client)
        assert await client.join("computer", COMPUTER, "office") == [True, None]
        async with SmcpAgent(world.url, office="office", name="bot") as agent:
            yield agent


@asynccontextmanager
async def navigating_natively(nats_url: str) -> AsyncIterator[SmcpAgent]:
    """The same with a native Computer, whose one MCP server holds the documents."""
    documents = [{"document": each} for each in page_documents()]
    servers = {"docs": context("2025", host=PAGE_HOST, content=documents)}
    async with (
        gateway_world(nats_url) as world,
        native_computer(world, "office", COMPUTER, servers),
        SmcpAgent(world.url, office="office", name="bot") as agent,
    ):
        yield agent


async def run(example: str, agent: SmcpAgent) -> tuple[dict[str, Any], list[str]]:
    """Run the page's code; what it named, and the lines that it printed."""
    code = compile(textwrap.dedent(example), "finder.txt", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    names: dict[str, Any] = {"agent": agent}
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        if inspect.isawaitable(ran := eval(code, names)):
            await ran
    return names, printed.getvalue().splitlines()


async def lists_the_documents_with_their_pages(agent: SmcpAgent) -> None:
    names, printed = await run(STEP_1, agent)
    assert printed == ["2026 年度报告: 12 页", "A1 合同: 5 页"]
    assert names["finder_ret"]["total_count"] == 2
    # and the filters that the page names
    for filters, found in (
        ({"keywords": ["合同"]}, ["contract-a1"]),
        ({"file_type": "xlsx"}, ["rpt-2026"]),
        ({"offset": 1, "limit": 1}, ["contract-a1"]),
    ):
        listed = await agent.get_finder(COMPUTER, **filters)
        assert [each["doc_ref"] for each in listed["documents"]] == found


async def opens_a_document_with_its_metadata_and_its_index(agent: SmcpAgent) -> None:
    names, printed = await run(STEP_2, agent)
    assert names["page_count"] == 12
    assert printed[:2] == [" 第 0 页: 概览 (8 元素)", " 第 1 页: 收入分析 (15 元素)"]
    assert len(printed) == 10
    assert names["doc"]["page_total"] == 12
    assert "pages" not in await agent.read_resource(COMPUTER, REPORT), "without depth=pages there is no index"


async def reads_a_page_as_markdown_and_only_its_tables(agent: SmcpAgent) -> None:
    page = (await run(STEP_3_MARKDOWN, agent))[0]["page"]
    assert "elements" not in page
    assert "2026 年度总结" in page["content_markdown"]
    _, printed = await run(STEP_3_TABLES, agent)
    assert printed == [" [table] tbl-001: 季度收入对比表(4行3列)"]


async def shows_an_element_whole(agent: SmcpAgent) -> None:
    element = (await run(STEP_4, agent))[0]["element"]
    assert element["metadata"] == {"source_range": "A1:C5", "has_formulas": True}
    assert element["content"]["headers"] == ["季度", "收入(万元)", "同比增长"]
    assert len(element["content"]["rows"]) == 4


async def goes_through_all_pages_of_a_document(agent: SmcpAgent) -> None:
    _, printed = await run(ALL_PAGES, agent)
    assert [line for line in printed if line.startswith("--- ")] == [
        "--- 第 0 页: 概览 ---",
        "--- 第 1 页: 收入分析 ---",
        *(f"--- 第 {number} 页: 第 {number} 章 ---" for number in range(2, 12)),
    ]
    assert printed[1] == "# 2026 年度总结"


async def browses_by_a_tool_of_its_own(agent: SmcpAgent) -> None:
    browse = (await run(OWN_TOOL, agent))[0]["browse_document"]
    assert (await browse(REPORT))["title"] == "概览"
    assert (await browse(REPORT, page=1))["title"] == "收入分析"


async def completes_what_a_template_asks_for(agent: SmcpAgent) -> None:
    pages, elements = (
        f"dpe://{PAGE_HOST}/{{doc_ref}}/pages/{{page_index}}",
        f"dpe://{PAGE_HOST}/{{doc_ref}}/elements/{{element_id}}",
    )
    chosen = {"doc_ref": "rpt-2026"}
    for question, before, values in (
        ((pages, "doc_ref", "rpt"), None, ["rpt-2026"]),
        ((pages, "page_index", ""), chosen, [str(number) for number in range(12)]),
        ((elements, "element_id", "tbl"), {**chosen, "page_index": "0"}, ["tbl-001"]),
    ):
        completion = await agent.complete(COMPUTER, *question, chosen=before)
        assert completion == {"values": values, "total": len(values), "hasMore": False}


@pytest.mark.rule("events.flow.finder.5", "finder.navigation.step_1", "finder.navigation.step_1.filters")
async def test_step_1_lists_the_documents_with_their_pages(nats_url: str) -> None:
    async with navigating(nats_url) as agent:
        await lists_the_documents_with_their_pages(agent)


@pytest.mark.rule("finder.{navigation.step_2,navigation.step_2.count,versus.access,practice.on_demand}")
async def test_step_2_opens_a_document_with_its_metadata_and_its_index(nats_url: str) -> None:
    async with navigating(nats_url) as agent:
        await opens_a_document_with_its_metadata_and_its_index(agent)


@pytest.mark.rule("finder.navigation.step_3", "finder.practice.summary")
async def test_step_3_reads_a_page_as_markdown_and_only_its_tables(nats_url: str) -> None:
    async with navigating(nats_url) as agent:
        await reads_a_page_as_markdown_and_only_its_tables(agent)


@pytest.mark.rule("finder.navigation.step_4")
async def test_step_4_shows_an_element_whole(nats_url: str) -> None:
    async with navigating(nats_url) as agent:
        await shows_an_element_whole(agent)


@pytest.mark.rule("finder.navigation.{no_tools,step_2.count,all}", "finder.overview.progressive")
async def test_the_whole_example_goes_through_all_pages_of_a_document(nats_url: str) -> None:
    async with navigating(nats_url) as agent:
        await goes_through_all_pages_of_a_document(agent)


@pytest.mark.rule("finder.reason.agents", "finder.navigation.own_tool")
async def test_an_agent_may_make_a_tool_of_its_own_of_it_and_have_templates_completed(nats_url: str) -> None:
    async with navigating(nats_url) as agent:
        await browses_by_a_tool_of_its_own(agent)
        await completes_what_a_template_asks_for(agent)


@pytest.mark.rule(
    "finder.{overview.progressive,versus.interaction,levels.1,levels.2,levels.3,query.passed,scope.read}",
    "finder.{reason.tools,reason.data,navigation.own_tool,navigation.native,completion.chain}",
    "finder.{completion.example.doc_ref,completion.example.page_index,completion.example.element_id}",
    "finder.{completion.fields,completion.prefix,practice.on_demand,practice.page_count}",
    "finder.{practice.categories,practice.completion}",
)
async def test_a_native_computer_serves_the_documents_without_a_tool_for_them(nats_url: str) -> None:
    async with navigating_natively(nats_url) as agent:
        await lists_the_documents_with_their_pages(agent)
        await opens_a_document_with_its_metadata_and_its_index(agent)
        await reads_a_page_as_markdown_and_only_its_tables(agent)
        await shows_an_element_whole(agent)
        await goes_through_all_pages_of_a_document(agent)
        await browses_by_a_tool_of_its_own(agent)
        await completes_what_a_template_asks_for(agent)
        # 设计理由: Computers with tools of their own for it would be in each other's way
        assert {tool.name for tool in await agent.get_tools(COMPUTER)} == set(
            ContextTools(Shelf(), None, 0.0, {})._tools
        )
