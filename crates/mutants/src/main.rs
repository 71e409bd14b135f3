//! The program: see the library, which has a test beside it and so is compiled once for both.

fn main() -> std::process::ExitCode {
    durix_mutants::run()
}
