//! One page load as a waterfall: a bar for each object, in the colour of its path.

use crate::page::Page;
use crate::report::{FigureError, write_beside};
use crate::scenario::Outcome;
use std::fmt::Write;
use std::path::Path;

const ROW: f64 = 14.0;
const LEFT: f64 = 300.0;
const WIDTH: f64 = 700.0;
/// The usual width of a letter.
const LETTER: f64 = 6.0;
const TOP: f64 = 68.0;
const WAITING: &str = "#cccccc";
const COLOURS: [&str; 8] =
    ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#000000", "#999999"];

/// Draw a page load as SVG text: grey is waiting for a connection, colours are under way. `paths` is what to
/// call the paths, in order.
pub fn draw(page: &Page, outcome: &Outcome, policy: &str, paths: &[String]) -> String {
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
    svg += &legend(paths);
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
            bar(span.ready, span.assigned, WAITING),
            bar(span.assigned, span.done, colour(usize::from(span.path)))
        );
    }
    svg + "</svg>\n"
}

/// What the colours mean, in one line.
fn legend(paths: &[String]) -> String {
    let named = paths.iter().enumerate();
    let named = named.map(|(n, path)| (colour(n), format!("path {}: {}", n + 1, shorten(path, 30))));
    let (mut line, mut x) = (String::new(), 8.0);
    for (colour, name) in [(WAITING, "waiting".to_owned())].into_iter().chain(named) {
        let _ = writeln!(
            line,
            "<rect x=\"{x}\" y=\"25\" width=\"10\" height=\"10\" fill=\"{colour}\"/>\
             <text x=\"{}\" y=\"34\">{}</text>",
            x + 14.0,
            escape(&name)
        );
        x += 36.0 + LETTER * name.chars().count() as f64;
    }
    line
}

fn colour(path: usize) -> &'static str {
    COLOURS[path % COLOURS.len()]
}

/// Draw a page load into a file, and into a bitmap beside it (`.png`).
///
/// # Errors
/// [`FigureError`] if a file can't be written.
pub fn write(
    page: &Page,
    outcome: &Outcome,
    policy: &str,
    paths: &[String],
    file: &Path,
) -> Result<(), FigureError> {
    let file = &file.with_extension("svg");
    std::fs::write(file, draw(page, outcome, policy, paths))
        .map_err(|error| FigureError::of(file)(&error))?;
    write_beside(file)
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
