//! The page with all figures and tables.

use super::error::FigureError;
use super::figures::{category_curves, speedup_curves};
use super::numbers::{Category, Summary, speedups, summarise};
use crate::experiment::Results;
use std::fmt::Write;
use std::fs;
use std::path::Path;

/// Write all figures (SVG, and PNG beside it) and `index.html` into a folder, which is made if need be.
///
/// `baseline` is the policy that speed-ups are against, `multipath` the one of Fig. 9 (left out if there is
/// none), and `subject` the one of Fig. 10.
///
/// # Errors
/// [`FigureError`] if a policy is not in the results or a file can't be written.
pub fn write(
    results: &Results,
    baseline: &str,
    multipath: &str,
    subject: &str,
    folder: &Path,
) -> Result<Vec<Summary>, FigureError> {
    let failed = FigureError::of(folder);
    let column = |label: &str| {
        results.column(label).ok_or_else(|| {
            failed(&format!("no policy {label} in the results; there are: {}", results.policies.join(" ")))
        })
    };
    let (base, subject_at) = (column(baseline)?, column(subject)?);
    fs::create_dir_all(folder).map_err(|error| failed(&error))?;
    let mut figures = vec![
        ("fig7a.svg", format!("Speed-up of each policy against {baseline} (Figs. 7a and 8)")),
        ("fig7b.svg", "The same between 1 and 5 (Fig. 7b)".to_owned()),
    ];
    speedup_curves(results, base, 0.05..100.0, &folder.join("fig7a.svg"))?;
    speedup_curves(results, base, 1.0..5.0, &folder.join("fig7b.svg"))?;
    if let Some(multipath_at) = results.column(multipath) {
        speedup_curves(results, multipath_at, 0.02..20.0, &folder.join("fig9.svg"))?;
        figures.push(("fig9.svg", format!("Speed-up of each policy against {multipath} (Fig. 9)")));
    }
    let rate = |row: usize| results.rows[row].levels[0].1;
    let label = "rate of path 1, Mbit/s (log)";
    category_curves(results, subject_at, base, label, rate, &folder.join("fig10a.svg"))?;
    let bytes = |row: usize| results.rows[row].bytes;
    let label = "size of the page, bytes (log)";
    category_curves(results, subject_at, base, label, bytes, &folder.join("fig10b.svg"))?;
    figures.push(("fig10a.svg", format!("Speed-up of {subject} by the rate of path 1 (Fig. 10a)")));
    figures.push(("fig10b.svg", format!("Speed-up of {subject} by the size of the page (Fig. 10b)")));
    let summaries = summarise(results, base);
    let page = page(results, &figures, &summaries, base, baseline);
    fs::write(folder.join("index.html"), page).map_err(|error| failed(&error))?;
    Ok(summaries)
}

const STYLE: &str = "body{font:16px/1.5 system-ui,sans-serif;max-width:820px;margin:2rem auto;padding:0 1rem;color:#222}\
table{border-collapse:collapse;width:100%;font-size:14px}td,th{padding:.25rem .5rem;text-align:right;border-bottom:1px solid #ddd}\
td:first-child,th:first-child{text-align:left}figure{margin:2rem 0}img{max-width:100%}figcaption{color:#555}";

fn page(
    results: &Results,
    figures: &[(&str, String)],
    summaries: &[Summary],
    base: usize,
    baseline: &str,
) -> String {
    let mut html = format!(
        "<!doctype html>\n<html lang=en><meta charset=utf-8><meta name=viewport content=\"width=device-width\">\
         <title>Page loads over several networks</title><style>{STYLE}</style>\n\
         <h1>Page loads over several networks</h1>\n<p>{} page loads under each of {} policies. Speed-ups are against \
         {}.</p>\n",
        results.rows.len(),
        results.policies.len(),
        escape(baseline)
    );
    html += &summary_table(summaries);
    html += &category_table(results, base);
    for (file, caption) in figures {
        let caption = escape(caption);
        let _ = writeln!(
            html,
            "<figure><img src={file} alt=\"{caption}\"><figcaption>{caption}</figcaption></figure>"
        );
    }
    html
}

fn summary_table(summaries: &[Summary]) -> String {
    let row = |mark: &str, cells: &[String]| -> String {
        cells.iter().fold("<tr>".to_owned(), |row, cell| row + mark + &escape(cell)) + "\n"
    };
    let mut html = "<h2>Page load times</h2>\n<table>".to_owned();
    html += &row("<th>", &Summary::HEADINGS.map(str::to_owned));
    for summary in summaries {
        html += &row("<td>", &summary.cells());
    }
    html + "</table>\n"
}

fn category_table(results: &Results, base: usize) -> String {
    let mut html = "<h2>Categories</h2>\n<table><tr><th>policy".to_owned();
    for category in Category::ALL {
        let _ = write!(html, "<th>{}", category.name());
    }
    for (policy, label) in results.policies.iter().enumerate() {
        let _ = write!(html, "\n<tr><td>{}", escape(label));
        let speedups = speedups(results, policy, base);
        for category in Category::ALL {
            let count = speedups.iter().filter(|speedup| Category::of(**speedup) == category).count();
            let _ = write!(html, "<td>{:.1} %", count as f64 / speedups.len().max(1) as f64 * 100.0);
        }
    }
    html + "\n</table>\n"
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('"', "&quot;")
}
