//! One page load as a waterfall: a bar for each object, in the colour of its path.

use crate::page::Page;
use crate::report::{FigureError, write_beside};
use crate::scenario::Outcome;
use std::fmt::Write;
use std::path::Path;

const ROW: f64 = 14.0;
const LEFT: f64 = 300.0;
const WIDTH: f64 = 700.0;
const TOP: f64 = 46.0;
const COLOURS: [&str; 8] =
    ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#000000", "#999999"];

/// Draw a page load as SVG text: grey is waiting for a connection, colours are under way.
pub fn draw(page: &Page, outcome: &Outcome, policy: &str) -> String {
    let height = TOP + ROW * page.transfers.len() as f64 + 20.0;
    let scale = WIDTH / outcome.plt.max(1e-9);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{}\" height=\"{height}\" font-family=\"sans-serif\" \
         font-size=\"11\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n\
         <text x=\"8\" y=\"16\" font-size=\"13\">{} by {}: {:.3} s, {} connections</text>\n",
        LEFT + WIDTH + 20.0,
        escape(&shorten(&page.name, 70)),
        escape(policy),
        outcome.plt,
        outcome.connections
    );
    for tick in 0..=5 {
        let x = LEFT + WIDTH * f64::from(tick) / 5.0;
        let _ = writeln!(
            svg,
            "<line x1=\"{x}\" x2=\"{x}\" y1=\"{TOP}\" y2=\"{}\" stroke=\"#ddd\"/><text x=\"{x}\" y=\"{}\" \
             text-anchor=\"middle\">{:.2} s</text>",
            height - 20.0,
            TOP - 6.0,
            outcome.plt * f64::from(tick) / 5.0
        );
    }
    for (n, (transfer, span)) in page.transfers.iter().zip(&outcome.spans).enumerate() {
        let y = TOP + ROW * n as f64;
        let bar = |from: f64, to: f64, colour: &str| {
            format!(
                "<rect x=\"{:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{}\" fill=\"{colour}\"/>",
                LEFT + from * scale,
                y + 2.0,
                ((to - from) * scale).max(0.5),
                ROW - 4.0
            )
        };
        let colour = COLOURS[usize::from(span.path) % COLOURS.len()];
        let _ = writeln!(
            svg,
            "<g><title>{}\n{} bytes, path {}, connection {}: ready {:.3} s, assigned {:.3} s, done {:.3} s</title>\
             <text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>{}{}</g>",
            escape(&transfer.url),
            transfer.size,
            span.path + 1,
            span.connection,
            span.ready,
            span.assigned,
            span.done,
            LEFT - 6.0,
            y + ROW - 3.0,
            escape(&shorten(&transfer.url, 44)),
            bar(span.ready, span.assigned, "#cccccc"),
            bar(span.assigned, span.done, colour)
        );
    }
    svg + "</svg>\n"
}

/// Draw a page load into a file, and into a bitmap beside it (`.png`).
///
/// # Errors
/// [`FigureError`] if a file can't be written.
pub fn write(page: &Page, outcome: &Outcome, policy: &str, path: &Path) -> Result<(), FigureError> {
    let path = &path.with_extension("svg");
    std::fs::write(path, draw(page, outcome, policy)).map_err(|error| FigureError::of(path)(&error))?;
    write_beside(path)
}

/// The beginning and the end of a long text.
fn shorten(text: &str, most: usize) -> String {
    let chars: Vec<char> = text.chars().collect();
    if chars.len() <= most {
        return text.to_owned();
    }
    let half = most / 2;
    chars[..half].iter().chain(['…'].iter()).chain(&chars[chars.len() - half..]).collect()
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
