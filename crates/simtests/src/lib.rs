//! The tests of the crash simulator are in `tests/`. The simulator is compiled with all optimisations, since crash tests of everything run
//! it. Tests of its own package would be compiled so, too, which takes six times as long as without any. They take twice the time to run so,
//! which is less than what compiling them gains.
