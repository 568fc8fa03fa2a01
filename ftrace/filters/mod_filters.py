"""`func:mod:module` requests: functions of modules, including modules that are not loaded yet."""

from __future__ import annotations

import errno

from ftrace.filters.glob import Match, Pattern, parse
from ftrace.filters.hashes import FILTER, NOTRACE, ModuleRequest, OpsHash
from ftrace.ops import ftrace_ops, install_hash
from ftrace.sites.block import SiteBlock
from ftrace.sites.locations import LocationTable, Selection, clean
from ftrace.tracer import Tracer, tracer
from sandbox.loading.module import is_loaded


def select(table: LocationTable, func: Pattern, module: Pattern) -> Selection:
    """The functions that match `func` in the modules that match `module` (or do not, if that is negated).

    An empty `func` is all functions of a module; an empty `module` is any. A number selects by position whatever the module.
    """
    if func.kind is Match.INDEX:
        return table.select(func)
    blocks = [block for block in table.blocks if _is_meant(module, block)]
    masks = {block: block.select(func) if func.search else block.everything for block in blocks}
    return clean(masks)


def _is_meant(module: Pattern, block: SiteBlock) -> bool:
    """Every function belongs to a module here: excluding all modules leaves nothing."""
    if not module.search:
        return not module.negated
    return module.matches(block.name) is not module.negated


def edited_by_request(
    tracing: Tracer, hashes: OpsHash, which: str, base: Selection, request: ModuleRequest
) -> Selection:
    """`base`, changed by `request`. A request for a module that is not loaded yet is cached instead.

    Raises OSError(EINVAL) if nothing matches in a loaded module, or if there is no cached request to remove.
    """
    func = parse(request.func)
    found = select(tracing.table, func, parse(request.module))
    if found:
        return base - found if func.negated else base | found
    _cache(tracing, hashes, which, request)
    return base


def _cache(tracing: Tracer, hashes: OpsHash, which: str, request: ModuleRequest) -> None:
    requests = hashes.requests[which]
    if request.func.startswith("!"):
        _forget(requests, ModuleRequest(request.func[1:], request.module))
        return
    if is_loaded(request.module):  # takes no lock, as it must: the modules' lock precedes the table's
        raise OSError(errno.EINVAL, f"no function of module {request.module!r} matches {request.func!r}")
    requests.insert(0, request)
    _apply_when_loaded(tracing, hashes)


def _forget(requests: list[ModuleRequest], unwanted: ModuleRequest) -> None:
    """Remove the cached requests equal to `unwanted`; with the function `*`, all for that module."""
    kept = [
        request for request in requests if request.module != unwanted.module or unwanted.func not in ("*", request.func)
    ]
    if len(kept) == len(requests):
        raise OSError(errno.EINVAL, f"no request {unwanted} is waiting")
    requests[:] = kept


_waiting: list[OpsHash] = []


def _apply_when_loaded(tracing: Tracer, hashes: OpsHash) -> None:
    """Register for module notifications, before other consumers."""
    if _module_coming not in tracing.when_coming:
        tracing.when_coming.append(_module_coming)
    if not any(other is hashes for other in _waiting):
        _waiting.append(hashes)


def _module_coming(block: SiteBlock) -> None:
    for hashes in list(_waiting):
        for which in (FILTER, NOTRACE):
            _apply(hashes, which, block)


def _apply(hashes: OpsHash, which: str, block: SiteBlock) -> None:
    """Apply the cached requests for this module, and remove them, whether or not anything matched."""
    tracing, requests = tracer(), hashes.requests[which]
    name = block.name
    mine = [request for request in requests if request.module == name]
    if not mine:
        return
    requests[:] = [request for request in requests if request.module != name]
    changed = getattr(hashes, which)
    for request in mine:
        changed |= select(tracing.table, parse(request.func), parse(name))
    holder = ftrace_ops()
    holder.func_hash = hashes
    awaits = bool(requests) if which == FILTER else None
    install_hash(tracing, holder, which, changed, awaits_modules=awaits)
