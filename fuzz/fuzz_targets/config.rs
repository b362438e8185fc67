//! The configuration file: any text is refused with a message or understood.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    let _ = whimbrel_cli::check_config(text);
});
