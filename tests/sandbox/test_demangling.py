"""Hazard: a name of C++ or Rust is shown as its compiler has mangled it, cut in the wrong place, or under another's name."""

from __future__ import annotations

import subprocess
import sys

import pytest

from ftrace.core.glob import bits_of, parse, select
from sandbox.symbols import demangling, readable
from sandbox.symbols.demangling import demangled
from sandbox.symbols.names import split_owner
from sandbox.symbols.readable import called, distinct, named, possible, short

FULL = {
    "_ZN3app5outerEi": "app::outer(int)",
    "_ZNK3app3Box3getEv": "app::Box::get() const",
    "_Z3foov.part.0": "foo() [clone .part.0]",
    "_Z3foov.constprop.0.isra.0": "foo() [clone .constprop.0] [clone .isra.0]",
    "_ZN3app1fEv.cold": "app::f() [clone .cold]",
    "_ZNSt6thread15_M_start_threadESt10unique_ptrINS_6_StateESt14default_deleteIS1_EEPFvvE@GLIBCXX_3.4.22": (
        "std::thread::_M_start_thread(std::unique_ptr<std::thread::_State, std::default_delete<std::thread::_State> >,"
        " void (*)())@GLIBCXX_3.4.22"
    ),
    "_ZN4core3fmt9Formatter9write_str17h0123456789abcdefE": "core::fmt::Formatter::write_str",
    "_ZN60_$LT$alloc..string..String$u20$as$u20$core..fmt..Display$GT$3fmt17h0123456789abcdefE": (
        "<alloc::string::String as core::fmt::Display>::fmt"
    ),
    "_ZN3std2rt10lang_start28_$u7b$$u7b$closure$u7d$$u7d$17h0123456789abcdefE.llvm.123": (
        "std::rt::lang_start::{{closure}}"
    ),
    "malloc": "",
    "_Zsomething": "",
    "_ZN": "",
    "_Z": "",
    "_R": "",
    "_D8mangling1fFZv": "",
    "$s4main1fyyF": "",
    "?f@@YAXH@Z": "",
}


@pytest.mark.parametrize("symbol", FULL)
def test_full_names(symbol):
    assert demangled(symbol) == FULL[symbol]


SHORT = {
    "app::outer(int)": "app::outer",
    "app::Box::get() const": "app::Box::get() const",
    "app::Box::r() &": "app::Box::r() &",
    "app::Box::rr() &&": "app::Box::rr() &&",
    "app::Box::cr(int) const &": "app::Box::cr() const &",
    "int app::twice<int>(int)": "app::twice",
    "std::vector<int, std::allocator<int> >* app::mk<int>(int)": "app::mk",
    "void (*app::fp<int>(int))(char)": "app::fp",
    "decltype ({parm#1}+(1)) app::dec<int>(int)": "app::dec",
    "std::enable_if<(3)>(2), int>::type app::only<int>(int)": "app::only",
    "app::Arr<3>::f(std::function<void (int)>)": "app::Arr::f",
    "app::Box::tag[abi:cxx11]()": "app::Box::tag",
    "app::Box::~Box()": "app::Box::~Box",
    "app::Box::operator()(int) const": "app::Box::operator()() const",
    "app::Box::operator[](int)": "app::Box::operator[]",
    "app::Box::operator->()": "app::Box::operator->",
    "app::Box::operator->*(int)": "app::Box::operator->*",
    "app::Box::operator<(app::Box const&) const": "app::Box::operator<() const",
    "bool app::Box::operator< <int>(int) const": "app::Box::operator<() const",
    "bool app::Box::operator<< <int>(int) const": "app::Box::operator<<() const",
    "bool app::Box::operator><int>(int) const": "app::Box::operator>() const",
    "app::Box::operator<=>(app::Box const&) const": "app::Box::operator<=>() const",
    "app::Box::operator,(int)": "app::Box::operator,",
    "app::Box::operator new(unsigned long)": "app::Box::operator new",
    "operator delete[](void*)": "operator delete[]",
    'operator"" _km(unsigned long long)': 'operator"" _km',
    "app::Box::operator int() const": "app::Box::operator int() const",
    "app::Box::operator std::vector<int, std::allocator<int> ><int>() const": "app::Box::operator std::vector() const",
    "app::operators::count(int)": "app::operators::count",
    "(anonymous namespace)::H::m(int)": "(anonymous namespace)::H::m",
    "use(int)::Loc::go()": "use::Loc::go",
    "use(int)::{lambda(int)#1}::operator()(int) const": "use::{lambda#1}::operator()() const",
    "auto use(int)::{lambda(auto:1)#2}::operator()<int>(int) const": "use::{lambda#2}::operator()() const",
    "A::f() const::{lambda()#1}::operator()() const": "A::f::{lambda#1}::operator()() const",
    "f()::'lambda'(int)::operator()(int) const": "f::'lambda'::operator()() const",
    "std::function<int (int)>::operator()(int) const": "std::function::operator()() const",
    "non-virtual thunk to app::VW::g()": "non-virtual thunk to app::VW::g",
    "vtable for app::VW": "vtable for app::VW",
    "guard variable for use(int)::count": "guard variable for use::count",
    "foo() [clone .part.0]": "foo [clone .part.0]",
    "app::Box::get() const [clone .cold]": "app::Box::get() const [clone .cold]",
    "app::counter": "app::counter",
    "<alloc::string::String as core::fmt::Display>::fmt": "<alloc::string::String as core::fmt::Display>::fmt",
    "<mine::Point<i64> as mine::Area<u8>>::area": "<mine::Point as mine::Area>::area",
    "<mine::Point<i64>>::show": "mine::Point::show",
    "mine::apply::<mine::go::{closure#0}>": "mine::apply",
    "mine::Point<T>::show": "mine::Point::show",
    "": "",
    "f(": "f(",
    "f<": "f<",
    "<": "<",
}


@pytest.mark.parametrize("full", SHORT)
def test_short_names(full):
    assert short(full) == SHORT[full]


def test_rust_of_version_0_by_the_package():
    pytest.importorskip("pydemumble")
    symbol = "_RINvCs1234_4mine5applyNCNvB2_2go0EB2_"
    assert demangled("_RNvCs1234_4mine3foo") == "mine::foo"
    assert readable.readable(symbol) == "mine::apply"


def test_rust_without_the_package_stays_as_it_is(monkeypatch):
    monkeypatch.setattr(demangling, "_package", lambda: None)
    assert demangling.demangled.__wrapped__("_RNvCs1234_4mine3bar") == ""


def test_without_a_cxx_library_names_stay_as_they_are(monkeypatch):
    monkeypatch.setattr(demangling, "_functions", lambda: None)
    monkeypatch.setattr(demangling, "_package", lambda: None)
    assert demangling.demangled.__wrapped__("_ZN3app5innerEi") == ""


def test_overloads_are_told_apart():
    add, other, lone = "_ZN3app3addEi", "_ZN3app3addEd", "_ZN3app3getEv"
    assert distinct([add, other, lone, "malloc"]) == {
        add: "app::add(int)",
        other: "app::add(double)",
        lone: "app::get",
        "malloc": "malloc",
    }


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        ("app::Box::get", [0]),
        ("app::Box::get() const", [0]),
        ("app::add", [1, 2]),
        ("app::add(int)", [1]),
        ("app::tag", [3]),
        ("app::tag[abi:cxx11]()", [3]),
        ("app::ge", []),
        ("get", []),
        ("std::string::size", [4]),
        ("f", [5]),
    ],
)
def test_positions_of_a_name(wanted, found):
    symbols = ["_ZNK3app3Box3getEv", "_ZN3app3addEi", "_ZN3app3addEd", "_ZN3app3tagB5cxx11Ev", "_ZNKSs4sizeEv", "_Z1fv"]
    assert named(wanted, symbols) == found


def test_a_call_has_its_arguments_before_qualifiers():
    assert called("app::Box::get() const", "this=0x1") == "app::Box::get(this=0x1) const"
    assert called("app::Box::add(int)", "a=1") == "app::Box::add(a=1)"
    assert called("app::f(void (*)(int)) [clone .part.0]", "") == "app::f() [clone .part.0]"
    assert called("use::{lambda#1}::operator()() const", "n=1") == "use::{lambda#1}::operator()(n=1) const"
    assert called("use::M::operator()", "n=1") == "use::M::operator()(n=1)"
    assert called("use::M::operator() [clone .isra.0]", "n=1") == "use::M::operator()(n=1) [clone .isra.0]"
    assert called("malloc", "size=3", str.upper) == "MALLOC(size=3)"


@pytest.mark.parametrize(
    ("text", "owner"),
    [("app::outer", ""), ("libapp:app::outer", "libapp"), ("app::tag[abi:cxx11]", ""), ("a:b::c(d::e)", "a")],
)
def test_two_colons_and_those_of_tags_separate_no_library(text, owner):
    assert split_owner(text)[0] == owner


def test_nothing_is_loaded_for_names_of_c():
    code = (
        "import sys; from sandbox.symbols.readable import readable\n"
        "readable('malloc'); print('libstdc++' in open('/proc/self/maps').read(), 'pydemumble' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout == "False False\n", done.stderr


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("app::Box::[gs]et*", ["get", "set"]),
        ("app::Bo[x]::g?t() const", ["get"]),
        ("*operator[+-]*", ["plus"]),
        ("*opera[t]or+*", ["plus"]),
        ("app::[!B]ox::*", []),
    ],
)
def test_only_names_that_a_class_may_match_are_demangled(pattern, found):
    symbols = {
        "get": "_ZNK3app3Box3getEv",
        "set": "_ZN3app3Box3setEi",
        "plus": "_ZN3app3BoxplERKS0_",
        "other": "_ZN5other3runEv",
    }
    names = list(symbols.values())
    assert [names[place] for place in bits_of(select(parse(pattern), names))] == [symbols[each] for each in found]
    assert len(possible("app::Box::[gs]et*", names)) == 3


def test_a_name_of_rust_with_brackets_means_itself():
    """They were a class of characters, so that the name that a report shows matched nothing."""
    body = "_$LT$$u5b$T$u3b$$u20$N$u5d$$u20$as$u20$core..fmt..Debug$GT$"
    symbols = [f"_ZN{len(body)}{body}{name}17h0123456789abcdefE" for name in ("3fmt", "4else")]
    pattern = "<[T; N] as core::fmt::Debug>::fmt"
    assert short(demangled(symbols[0])) == pattern
    assert [*bits_of(select(parse(pattern), symbols))] == [0]
