//! Results as pictures, SVG and PNG.

mod cases;
mod chart;
mod png;

use std::error::Error;
use std::path::Path;

use anyhow::{Result, anyhow};
use plotters::coord::Shift;
use plotters::prelude::*;

pub(crate) use self::chart::{Axis, Chart, Corner, Point, Series, Style};
pub(crate) use self::png::write_png;
use crate::report::{Plot, Ratio, Spec, Summary, Trial, distinct};
use crate::stats::{quantile, sorted};

const SIZE: (u32, u32) = (960, 540);
/// Of one bar, where there are many.
const BAR_HEIGHT: u32 = 24;
const FONT: (&str, u32) = ("sans-serif", 15);
const TITLE: (&str, u32) = ("sans-serif", 20);
/// A log scale has no zero.
const LEAST: f64 = 1.0;

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Drawn = std::result::Result<(), Box<dyn Error>>;

/// What there is to draw.
pub(crate) struct Found<'a> {
    pub(crate) trials: &'a [Trial],
    pub(crate) summaries: &'a [Summary],
    pub(crate) ratios: &'a [Ratio],
    pub(crate) chart: Option<&'a Chart>,
}

/// Draws what a bench found. False if there is nothing to draw.
pub(crate) fn draw(path: &Path, spec: &Spec, found: &Found<'_>) -> Result<bool> {
    let Found { trials, summaries, ratios, chart } = *found;
    let is_empty = match spec.plot {
        Plot::Ratios => ratios.is_empty(),
        Plot::Against { .. } | Plot::Distribution { .. } => trials.is_empty(),
        Plot::Cases { metric, .. } => summaries.iter().all(|summary| summary.metric != metric),
        Plot::Chart => chart.is_none_or(Chart::is_empty),
    };
    if is_empty {
        return Ok(false);
    }
    let bars = match spec.plot {
        Plot::Ratios => ratios.len(),
        Plot::Cases { metric, .. } => summaries.iter().filter(|s| s.metric == metric).count(),
        _ => 0,
    };
    let size = (SIZE.0, SIZE.1.max(120 + BAR_HEIGHT * bars as u32));
    let drawn = || -> Drawn {
        let area = SVGBackend::new(path, size).into_drawing_area();
        area.fill(&WHITE)?;
        let area = area.titled(&format!("{}: {}", spec.name, spec.title), TITLE)?;
        match spec.plot {
            Plot::Ratios => bars_of_ratios(&area, ratios)?,
            Plot::Against { value, budget, allowance, unit } => {
                against(&area, trials, value, budget, allowance, unit)?;
            }
            Plot::Distribution { unit, limit } => distribution(&area, trials, unit, limit)?,
            Plot::Cases { metric, unit } => cases::draw(&area, summaries, metric, unit)?,
            Plot::Chart => chart.map_or(Ok(()), |chart| chart::draw(&area, chart))?,
        }
        Ok(area.present()?)
    };
    drawn().map_err(|error| anyhow!("cannot draw {}: {error}", path.display()))?;
    Ok(true)
}

fn labels(trials: &[Trial]) -> Vec<&str> {
    distinct(trials.iter().map(|trial| trial.system.as_str()))
}

/// The middle of the `index`-th of several columns.
fn middle(index: usize) -> f64 {
    index as f64 + 0.5
}

/// The subject divided by each peer: a bar for the median, a line from the least to the greatest.
fn bars_of_ratios(area: &Area<'_>, ratios: &[Ratio]) -> Drawn {
    let top = ratios.iter().map(|ratio| ratio.spread.max).fold(1.0, f64::max) * 1.1;
    let name = |index: usize| {
        ratios.get(index).map_or(String::new(), |r| {
            let case = if r.case.is_empty() { String::new() } else { format!("{}, ", r.case) };
            format!("{case}{}: {} / {}", r.metric, r.subject, r.peer)
        })
    };
    let mut chart = ChartBuilder::on(area)
        .margin(12)
        .x_label_area_size(36)
        .y_label_area_size(280)
        .build_cartesian_2d(0.0..top, 0.0..ratios.len() as f64)?;
    chart
        .configure_mesh()
        .disable_y_mesh()
        .y_labels(ratios.len() * 2 + 1)
        .y_label_formatter(&|y| {
            if (y.fract() - 0.5).abs() < 0.01 { name(*y as usize) } else { String::new() }
        })
        .x_desc("ratio")
        .label_style(FONT)
        .draw()?;
    for (index, ratio) in ratios.iter().enumerate() {
        let (y, spread) = (middle(index), ratio.spread);
        let bar = [(0.0, y - 0.3), (spread.median, y + 0.3)];
        chart.draw_series([Rectangle::new(bar, BLUE.mix(0.5).filled())])?;
        chart.draw_series([PathElement::new([(spread.min, y), (spread.max, y)], BLACK)])?;
    }
    chart.draw_series([PathElement::new([(1.0, 0.0), (1.0, ratios.len() as f64)], RED.mix(0.6))])?;
    Ok(())
}

/// Every run as a point, the median as a line, and the limit: the budget's median and what comes on top.
fn against(
    area: &Area<'_>,
    trials: &[Trial],
    value: &str,
    budget: &str,
    allowance: f64,
    unit: &str,
) -> Drawn {
    let labels = labels(trials);
    let of = |label: &str, metric: &str| -> Vec<f64> {
        let own = trials.iter().filter(|trial| trial.system == label);
        sorted(&own.filter_map(|trial| trial.values.get(metric)).copied().collect::<Vec<_>>())
    };
    let all = trials.iter().flat_map(|trial| [trial.values.get(value), trial.values.get(budget)]);
    let highest = all.flatten().copied().fold(LEAST, f64::max);
    let lowest = trials.iter().filter_map(|t| t.values.get(value)).copied().fold(highest, f64::min);
    let range = (lowest.max(LEAST) * 0.8..highest * 1.3).log_scale();
    let name = |x: &f64| {
        let is_middle = (x.fract() - 0.5).abs() < 0.01;
        let label = labels.get(*x as usize).filter(|_| is_middle);
        label.map_or(String::new(), |label| label.trim_start_matches("whimbrel ").to_owned())
    };
    let mut chart = ChartBuilder::on(area)
        .margin(12)
        .x_label_area_size(36)
        .y_label_area_size(70)
        .build_cartesian_2d(0.0..labels.len() as f64, range)?;
    chart
        .configure_mesh()
        .disable_x_mesh()
        .x_labels(labels.len() * 2 + 1)
        .x_label_formatter(&name)
        .y_desc(unit)
        .label_style(("sans-serif", 12))
        .draw()?;
    for (index, label) in labels.iter().enumerate() {
        let (x, values) = (middle(index), of(label, value));
        let spread_out = |at: usize| x - 0.2 + 0.4 * at as f64 / values.len().max(1) as f64;
        let points =
            values.iter().enumerate().map(|(at, y)| Circle::new((spread_out(at), *y), 2, BLUE.mix(0.6)));
        chart.draw_series(points)?;
        if let Some(median) = quantile(&values, 0.5) {
            chart.draw_series([PathElement::new(
                [(x - 0.3, median), (x + 0.3, median)],
                BLUE.stroke_width(2),
            )])?;
        }
        if let Some(budget) = quantile(&of(label, budget), 0.5) {
            let limit = budget + allowance;
            chart
                .draw_series([PathElement::new([(x - 0.4, limit), (x + 0.4, limit)], RED.stroke_width(2))])?;
        }
    }
    Ok(())
}

/// The share of samples below each value, a curve for each label; all rounds together.
fn distribution(area: &Area<'_>, trials: &[Trial], unit: &str, limit: f64) -> Drawn {
    let highest = trials.iter().flat_map(|trial| &trial.samples).copied().fold(limit, f64::max);
    let mut chart = ChartBuilder::on(area)
        .margin(12)
        .x_label_area_size(44)
        .y_label_area_size(60)
        .build_cartesian_2d(0.0..highest * 1.05, 0.0..1.0)?;
    chart.configure_mesh().x_desc(unit).y_desc("share of connections").label_style(FONT).draw()?;
    for (index, label) in labels(trials).into_iter().enumerate() {
        let own = trials.iter().filter(|trial| trial.system == label);
        let samples = sorted(&own.flat_map(|trial| trial.samples.iter().copied()).collect::<Vec<_>>());
        let total = samples.len().max(1) as f64;
        let color = Palette99::pick(index).to_rgba();
        let curve = samples.iter().enumerate().map(|(at, value)| (*value, (at + 1) as f64 / total));
        chart
            .draw_series(LineSeries::new(curve, color.stroke_width(2)))?
            .label(label)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 20, y)], color.stroke_width(2)));
    }
    chart
        .draw_series([PathElement::new([(limit, 0.0), (limit, 1.0)], RED)])?
        .label("limit")
        .legend(|(x, y)| PathElement::new([(x, y), (x + 20, y)], RED));
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::LowerRight)
        .border_style(BLACK)
        .background_style(WHITE)
        .label_font(FONT)
        .draw()?;
    Ok(())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn spec(plot: Plot) -> Spec {
        Spec { name: "test", title: "", metrics: &[], targets: &[], plot }
    }

    #[test]
    fn distributions_and_points_become_pictures_that_name_what_they_show() {
        let folder = std::env::temp_dir().join(format!("whimbrel-plot-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let trials = [Trial::new("whimbrel 7", 0).with("a", 1.0).with("b", 2.0).with_samples(vec![3.0, 4.0])];
        let against = Plot::Against { value: "a", budget: "b", allowance: 1.0, unit: "ms" };
        for (plot, named) in
            [(against, ">\n7\n<"), (Plot::Distribution { unit: "ms", limit: 5.0 }, "whimbrel 7")]
        {
            let path = folder.join("plot.svg");
            let found = Found { trials: &trials, summaries: &[], ratios: &[], chart: None };
            assert!(draw(&path, &spec(plot), &found).unwrap());
            let text = std::fs::read_to_string(&path).unwrap();
            assert!(text.contains(named), "{text}");
        }
        let nothing = Found { trials: &trials, summaries: &[], ratios: &[], chart: None };
        assert!(!draw(&folder.join("none.svg"), &spec(Plot::Ratios), &nothing).unwrap());
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
