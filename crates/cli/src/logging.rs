//! Log lines on standard error: which of them, and how they look.

use std::io::IsTerminal as _;

use anyhow::Result;
use clap::ValueEnum as _;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

use crate::failure::Failure;
use crate::options::{Globals, LogFormat};

/// What is logged, as `whimbrel=debug,quinn=info`.
const FILTER: &str = "RUST_LOG";
/// Names the format where `--log-format` does not.
const VARIABLE: &str = "WHIMBREL_LOG_FORMAT";

/// Log lines go to standard error from now on. Without -v there are none: what users must know is said as an
/// error.
///
/// # Errors
/// When the environment names a format that does not exist.
pub(crate) fn start(globals: &Globals) -> Result<()> {
    let format = match (globals.log_format, std::env::var(VARIABLE)) {
        (Some(format), _) => format,
        (None, Ok(text)) if !text.is_empty() => LogFormat::from_str(&text, false)
            .map_err(|_| Failure::usage(format!("{VARIABLE}={text}: it should be text or json")))?,
        (None, _) => LogFormat::default(),
    };
    // The variable may be meant for another program, whose filters are of more kinds.
    let filter = std::env::var(FILTER).ok().filter(|text| !text.is_empty());
    let filter = filter.and_then(|text| text.parse().ok()).unwrap_or_else(|| level(globals));
    let wants_colours = std::env::var_os("NO_COLOR").is_none_or(|text| text.is_empty());
    let colours = wants_colours && std::io::stderr().is_terminal();
    // A second subscriber is refused; there is none.
    let _ = subscriber(format, filter, colours, std::io::stderr).try_init();
    Ok(())
}

/// What is logged without RUST_LOG.
fn level(globals: &Globals) -> Targets {
    match (globals.quiet, globals.verbose) {
        (true, _) | (_, 0) => Targets::new(),
        (_, 1) => Targets::new().with_default(LevelFilter::INFO),
        (_, 2) => Targets::new().with_default(LevelFilter::DEBUG),
        _ => Targets::new().with_default(LevelFilter::TRACE),
    }
}

fn subscriber<W>(
    format: LogFormat,
    filter: Targets,
    colours: bool,
    writer: W,
) -> Box<dyn tracing::Subscriber + Send + Sync>
where
    W: for<'a> MakeWriter<'a> + Send + Sync + 'static,
{
    let layer = tracing_subscriber::fmt::layer().with_ansi(colours).with_writer(writer);
    let registry = tracing_subscriber::registry().with(filter);
    match format {
        LogFormat::Text => Box::new(registry.with(layer)),
        LogFormat::Json => Box::new(registry.with(layer.json())),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::io::Write;
    use std::sync::{Arc, Mutex};

    use super::*;

    #[derive(Clone, Default)]
    struct Written(Arc<Mutex<Vec<u8>>>);

    impl Write for Written {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    /// What is written with so many -v, by three who log.
    fn logged(verbose: u8, format: LogFormat) -> String {
        let written = Written::default();
        let writer = written.clone();
        let filter = level(&Globals { verbose, ..Globals::default() });
        let subscriber = subscriber(format, filter, false, move || writer.clone());
        tracing::subscriber::with_default(subscriber, || {
            tracing::info!(target: "whimbrel_transport::mover", rtt = 3, "moved");
            tracing::debug!(target: "whimbrel_transport::dial", "dialling");
            tracing::warn!(target: "quinn::endpoint", "odd packet");
        });
        let bytes = written.0.lock().unwrap().clone();
        String::from_utf8(bytes).unwrap()
    }

    #[test]
    fn each_v_shows_more_and_none_nothing() {
        assert_eq!(logged(0, LogFormat::Text), "");
        for verbose in [1, 2, 3] {
            let text = logged(verbose, LogFormat::Text);
            assert!(text.contains("moved") && text.contains("odd packet"), "{text}");
            assert_eq!(text.contains("dialling"), verbose > 1, "{text}");
        }
    }

    #[test]
    fn json_has_an_object_a_line() {
        let text = logged(1, LogFormat::Json);
        let lines: Vec<serde_json::Value> =
            text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(lines.len(), 2);
        assert_eq!(lines[0]["level"], "INFO");
        assert_eq!(lines[0]["target"], "whimbrel_transport::mover");
        assert_eq!(
            (&lines[0]["fields"]["message"], &lines[0]["fields"]["rtt"]),
            (&"moved".into(), &3.into())
        );
    }
}
