//! The `whimbrel` program.

fn main() -> std::process::ExitCode {
    whimbrel_cli::run(std::env::args_os())
}
