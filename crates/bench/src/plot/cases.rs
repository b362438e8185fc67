//! A metric of each system, case by case.

use plotters::prelude::*;

use super::{Area, Drawn, FONT, middle};
use crate::report::{Summary, distinct};

/// A bar for each median, a line from the least to the greatest.
pub(super) fn draw(area: &Area<'_>, summaries: &[Summary], metric: &str, unit: &str) -> Drawn {
    let bars: Vec<&Summary> = summaries.iter().filter(|summary| summary.metric == metric).collect();
    let systems = distinct(bars.iter().map(|bar| bar.system.as_str()));
    let top = bars.iter().map(|bar| bar.spread.max).fold(0.0, f64::max).max(f64::MIN_POSITIVE) * 1.1;
    // The first one on top.
    let place = |index: usize| middle(bars.len() - 1 - index);
    let name = |y: f64| {
        let index = (bars.len() - 1).checked_sub(y as usize)?;
        let bar = bars.get(index).filter(|_| (y.fract() - 0.5).abs() < 0.01)?;
        Some(if bar.case.is_empty() { bar.system.clone() } else { format!("{}, {}", bar.case, bar.system) })
    };
    let mut chart = ChartBuilder::on(area)
        .margin(12)
        .x_label_area_size(36)
        .y_label_area_size(330)
        .build_cartesian_2d(0.0..top, 0.0..bars.len() as f64)?;
    chart
        .configure_mesh()
        .disable_y_mesh()
        .y_labels(bars.len() * 2 + 1)
        .y_label_formatter(&|y| name(*y).unwrap_or_default())
        .x_desc(format!("{metric} [{unit}]"))
        .label_style(FONT)
        .draw()?;
    for (index, bar) in bars.iter().enumerate() {
        let (y, spread) = (place(index), bar.spread);
        let color = Palette99::pick(systems.iter().position(|system| *system == bar.system).unwrap_or(0));
        let area = [(0.0, y - 0.3), (spread.median, y + 0.3)];
        chart.draw_series([Rectangle::new(area, color.mix(0.6).filled())])?;
        chart.draw_series([PathElement::new([(spread.min, y), (spread.max, y)], BLACK)])?;
    }
    Ok(())
}
