"""Names, their tree, and the walk along a path. What gives up references is in dcache.ll: its parts tail-call another."""

from __future__ import annotations

from sandbox.demo.lib import SLASH, alloc_bit, clear_bit
from sandbox.demo.sched import get_current
from sandbox.demo.structures import Dentry, Inode, Nameidata
from sandbox.native import *

copy_user = extern("__copy_user", fn[u64, ptr[u8], ptr[u8], u64])
link_path_walk = extern("link_path_walk", fn[i32, ptr[u8], ptr[Nameidata], u32])


@native
def dget(dentry: ptr[Dentry]) -> ptr[Dentry]:
    dentry.d_count += 1
    return dentry


@native
def d_free(dentry: ptr[Dentry]) -> void:
    task = get_current()
    offset = cast(u64, dentry) - cast(u64, addressof(task.dentries))
    clear_bit(offset // sizeof(Dentry), addressof(task.dentry_map))


@native
def d_drop(dentry: ptr[Dentry]) -> void:
    """Takes a name out of its directory, if it is in it."""
    parent = dentry.d_parent
    if parent == null:
        return
    link = addressof(parent.d_subdirs)
    while link[0] != null:
        if link[0] == dentry:
            link[0] = dentry.d_child
            return
        link = addressof(link[0].d_child)


@native
def d_alloc(parent: ptr[Dentry], name: ptr[u8], hash_len: u64) -> ptr[Dentry]:
    """A new name without an inode, in its directory, with one reference; null when the table is full."""
    task = get_current()
    nr = alloc_bit(addressof(task.dentry_map))
    if nr < 0:
        return null
    dentry = addressof(task.dentries[nr])
    dentry.d_parent = parent
    dentry.d_inode = null
    dentry.d_subdirs = null
    dentry.d_child = null
    dentry.d_hash_len = hash_len
    dentry.d_count = 1
    length = hash_len >> 32
    copy_user(addressof(dentry.d_name[0]), name, length)
    dentry.d_name[length] = 0
    if parent != null:
        dget(parent)
        dentry.d_child = parent.d_subdirs
        parent.d_subdirs = dentry
    return dentry


@native
def d_instantiate(dentry: ptr[Dentry], inode: ptr[Inode]) -> void:
    dentry.d_inode = inode


@native
def dentry_cmp(cs: ptr[u8], ct: ptr[u8], tcount: u64) -> bool_:
    """Are the first tcount bytes of two names the same?"""
    i: u64 = 0
    while i < tcount and cs[i] == ct[i]:
        i += 1
    return i == tcount


@native
def d_lookup(parent: ptr[Dentry], name: ptr[u8], hash_len: u64) -> ptr[Dentry]:
    """The child of that name, with a reference, or null."""
    child = parent.d_subdirs
    while child != null:
        if child.d_hash_len == hash_len and dentry_cmp(addressof(child.d_name[0]), name, hash_len >> 32):
            return dget(child)
        child = child.d_child
    return null


@native
def skip_slashes(name: ptr[u8]) -> ptr[u8]:
    slashes: u64 = 0
    while name[slashes] == SLASH:
        slashes += 1
    return addressof(name[slashes])


@native
def path_parentat(name: ptr[u8], nd: ptr[Nameidata]) -> i32:
    """Walks to the directory of the last component, and leaves it, referenced, in nd. 0 or an error."""
    nd.dir = get_current().root
    return link_path_walk(name, nd, 0)


@native
def lookup_last(nd: ptr[Nameidata]) -> ptr[Dentry]:
    """The dentry that nd names, referenced: the directory itself for an empty name; or null."""
    if nd.hash_len >> 32 == 0:
        return dget(nd.dir)
    return d_lookup(nd.dir, nd.last, nd.hash_len)
