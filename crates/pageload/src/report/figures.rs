//! Drawing.

use super::error::FigureError;
use super::numbers::{Category, ecdf, speedups};
use super::png::write_beside;
use crate::experiment::Results;
use plotters::coord::ranged1d::{AsRangedCoord, Ranged, ValueFormatter};
use plotters::prelude::*;
use std::ops::Range;
use std::path::Path;

const SIZE: (u32, u32) = (760, 460);
const POINTS: usize = 400;
/// Colours that people with colour-vision deficiencies can tell apart (Okabe and Ito), grey, brown and olive.
const COLOURS: [RGBColor; 10] = [
    RGBColor(0, 0, 0),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
    RGBColor(0, 158, 115),
    RGBColor(213, 94, 0),
    RGBColor(0, 114, 178),
    RGBColor(204, 121, 167),
    RGBColor(150, 150, 150),
    RGBColor(120, 60, 20),
    RGBColor(190, 185, 40),
];

/// The colour of the n-th thing.
pub(crate) fn colour(n: usize) -> RGBColor {
    COLOURS[n % COLOURS.len()]
}

/// ECDFs of the speed-up of every policy against one of them, between two values.
pub(super) fn speedup_curves(
    results: &Results,
    baseline: usize,
    range: Range<f64>,
    path: &Path,
) -> Result<(), FigureError> {
    let curves: Vec<Curve> = (0..results.policies.len())
        .filter(|policy| *policy != baseline)
        .map(|policy| Curve {
            name: results.policies[policy].clone(),
            colour: policy,
            steps: ecdf(&speedups(results, policy, baseline), 2 * POINTS),
        })
        .collect();
    let label = format!("speed-up against {} (log)", results.policies[baseline]);
    draw(&curves, range.clone().log_scale(), range, &label, path)
}

/// Fig. 10: how the categories of one policy's speed-up spread over a property of the rows.
pub(super) fn category_curves(
    results: &Results,
    policy: usize,
    baseline: usize,
    label: &str,
    property: impl Fn(usize) -> f64,
    path: &Path,
) -> Result<(), FigureError> {
    let speedups = speedups(results, policy, baseline);
    let curves: Vec<Curve> = Category::ALL
        .iter()
        .enumerate()
        .map(|(n, category)| {
            let rows = (0..speedups.len()).filter(|row| Category::of(speedups[*row]) == *category);
            let values: Vec<f64> = rows.map(&property).collect();
            let share = values.len() as f64 / speedups.len().max(1) as f64 * 100.0;
            Curve {
                name: format!("{} ({share:.1} %)", category.name()),
                colour: n,
                steps: ecdf(&values, POINTS),
            }
        })
        .collect();
    let all = curves.iter().flat_map(|curve| curve.steps.iter().map(|step| step.0));
    let (low, high) = all.fold((f64::MAX, f64::MIN), |(low, high), x| (low.min(x), high.max(x)));
    let range = low * 0.9..high * 1.1;
    draw(&curves, range.clone().log_scale(), range, label, path)
}

struct Curve {
    name: String,
    colour: usize,
    steps: Vec<(f64, f64)>,
}

fn draw<X>(curves: &[Curve], scale: X, range: Range<f64>, label: &str, path: &Path) -> Result<(), FigureError>
where
    X: AsRangedCoord<Value = f64>,
    X::CoordDescType: Ranged<ValueType = f64> + ValueFormatter<f64>,
{
    let failed = FigureError::of(path);
    let root = SVGBackend::new(path, SIZE).into_drawing_area();
    root.fill(&WHITE).map_err(|error| failed(&error))?;
    let mut chart = ChartBuilder::on(&root)
        .margin(12)
        .x_label_area_size(44)
        .y_label_area_size(56)
        .build_cartesian_2d(scale, 0.0..1.0)
        .map_err(|error| failed(&error))?;
    chart
        .configure_mesh()
        .x_desc(label)
        .y_desc("share of page loads")
        .x_label_formatter(&|x| short(*x))
        .light_line_style(WHITE)
        .bold_line_style(RGBColor(225, 225, 225))
        .draw()
        .map_err(|error| failed(&error))?;
    for curve in curves {
        let style = colour(curve.colour).stroke_width(2);
        chart
            .draw_series(LineSeries::new(stairs(&curve.steps, &range), style))
            .map_err(|error| failed(&error))?
            .label(&curve.name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], style));
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::LowerRight)
        .background_style(WHITE.mix(0.85))
        .border_style(RGBColor(180, 180, 180))
        .draw()
        .map_err(|error| failed(&error))?;
    root.present().map_err(|error| failed(&error))?;
    write_beside(path)
}

/// Axis labels without a tail of zeros.
fn short(x: f64) -> String {
    if x >= 1e6 {
        format!("{}M", (x / 1e4).round() / 100.0)
    } else if x >= 1e3 {
        format!("{}k", (x / 10.0).round() / 100.0)
    } else {
        format!("{}", (x * 100.0).round() / 100.0)
    }
}

/// The corners of a step function within a range.
fn stairs(steps: &[(f64, f64)], range: &Range<f64>) -> Vec<(f64, f64)> {
    let mut corners = Vec::with_capacity(2 * steps.len() + 2);
    let mut height = 0.0;
    for &(x, y) in steps {
        let x = x.clamp(range.start, range.end);
        if corners.is_empty() {
            corners.push((range.start, height));
        }
        corners.push((x, height));
        corners.push((x, y));
        height = y;
    }
    corners.push((range.end, height));
    corners
}
