//! The program `whimbrel-pageload`.

fn main() {}
