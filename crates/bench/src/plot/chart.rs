//! One number against another, a line or points for each system.

use plotters::coord::ranged1d::{KeyPointHint, NoDefaultFormatting, ValueFormatter};
use plotters::coord::types::RangedCoordf64;
use plotters::prelude::*;
use serde::Serialize;

use super::{Area, Drawn, FONT};
use crate::stats::Spread;

/// Room around what is drawn, as a share of it.
const AROUND: f64 = 0.05;

#[derive(Debug, Clone, Serialize)]
pub(crate) struct Chart {
    pub(crate) x: Axis,
    pub(crate) y: Axis,
    pub(crate) series: Vec<Series>,
    /// Where nothing is drawn.
    #[serde(skip)]
    pub(crate) free: Corner,
    /// An upright line here, with its meaning.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) mark: Option<(f64, &'static str)>,
}

/// Where the names of the series have room.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Corner {
    UpperLeft,
    UpperRight,
}

#[derive(Debug, Clone, Serialize)]
pub(crate) struct Axis {
    pub(crate) label: String,
    pub(crate) is_log: bool,
}

impl Axis {
    pub(crate) fn linear(label: &str) -> Self {
        Self { label: label.to_owned(), is_log: false }
    }

    pub(crate) fn log(label: &str) -> Self {
        Self { label: label.to_owned(), is_log: true }
    }

    /// Where a value is drawn.
    fn place(&self, value: f64) -> f64 {
        if self.is_log { value.max(f64::MIN_POSITIVE).log10() } else { value }
    }

    fn name(&self, place: f64) -> String {
        let value = if self.is_log { 10_f64.powf(place) } else { place };
        match value.abs() {
            size if size >= 100.0 || (value - value.round()).abs() < 1e-9 => format!("{value:.0}"),
            size if size >= 1.0 => format!("{value:.1}"),
            _ => format!("{value:.3}"),
        }
    }

    fn scale(&self, range: std::ops::Range<f64>) -> Scale {
        Scale { range: range.into(), is_log: self.is_log }
    }

    /// From the least to the greatest value, and a little more; a linear axis begins at zero if all are
    /// positive.
    fn range(&self, values: impl Iterator<Item = f64>) -> std::ops::Range<f64> {
        let (mut low, mut high) = (f64::INFINITY, f64::NEG_INFINITY);
        for place in values.map(|value| self.place(value)) {
            (low, high) = (low.min(place), high.max(place));
        }
        if !self.is_log && low > 0.0 {
            low = 0.0;
        }
        let around = ((high - low) * AROUND).max(0.01);
        let below = if !self.is_log && low == 0.0 { 0.0 } else { around };
        low - below..high + around
    }
}

/// An axis whose lines are at round numbers, on a log scale too.
struct Scale {
    /// Of places.
    range: RangedCoordf64,
    is_log: bool,
}

impl Ranged for Scale {
    type FormatOption = NoDefaultFormatting;
    type ValueType = f64;

    fn map(&self, place: &f64, limit: (i32, i32)) -> i32 {
        self.range.map(place, limit)
    }

    fn key_points<Hint: KeyPointHint>(&self, hint: Hint) -> Vec<f64> {
        if !self.is_log {
            return self.range.key_points(hint);
        }
        let range = self.range();
        let decades = range.start.floor() as i32..=range.end.ceil() as i32;
        let round =
            decades.flat_map(|decade| [1.0_f64, 2.0, 5.0].map(|digit| digit.log10() + f64::from(decade)));
        round.filter(|place| range.contains(place)).collect()
    }

    fn range(&self) -> std::ops::Range<f64> {
        self.range.range()
    }
}

impl ValueFormatter<f64> for Scale {
    fn format(place: &f64) -> String {
        place.to_string()
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Style {
    Line,
    /// Points alone.
    Points,
    /// A line with its points.
    Both,
}

#[derive(Debug, Clone, Serialize)]
pub(crate) struct Series {
    pub(crate) label: String,
    pub(crate) style: Style,
    pub(crate) points: Vec<Point>,
}

/// A value, and between which others it lies in the middle, if that is known.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(crate) struct Point {
    pub(crate) x: f64,
    pub(crate) y: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) ends: Option<(f64, f64)>,
}

impl Point {
    pub(crate) fn new(x: f64, y: f64) -> Self {
        Self { x, y, ends: None }
    }

    /// The median, least and greatest of some values; `None` of nothing.
    pub(crate) fn of(x: f64, values: &[f64]) -> Option<Self> {
        let Spread { median, min, max, .. } = Spread::of(values)?;
        Some(Self { x, y: median, ends: Some((min, max)) })
    }
}

impl Chart {
    pub(crate) fn is_empty(&self) -> bool {
        self.points().next().is_none()
    }

    fn points(&self) -> impl Iterator<Item = &Point> {
        self.series.iter().flat_map(|series| &series.points)
    }

    /// All points, one a line, below a head.
    pub(crate) fn csv(&self) -> String {
        let mut text = "series,x,y,least,greatest\n".to_owned();
        for series in &self.series {
            for Point { x, y, ends } in &series.points {
                let ends = ends.map_or(",".to_owned(), |(least, greatest)| format!("{least},{greatest}"));
                text += &format!("\"{}\",{x},{y},{ends}\n", series.label.replace('"', "'"));
            }
        }
        text
    }
}

pub(super) fn draw(area: &Area<'_>, chart: &Chart) -> Drawn {
    let Chart { x, y, series, mark, .. } = chart;
    let xs = x.range(chart.points().map(|point| point.x).chain(mark.map(|(at, _)| at)));
    let heights = chart.points().flat_map(|point| {
        let (low, high) = point.ends.unwrap_or((point.y, point.y));
        [point.y, low, high]
    });
    let ys = y.range(heights);
    let mut drawing = ChartBuilder::on(area)
        .margin(12)
        .x_label_area_size(44)
        .y_label_area_size(70)
        .build_cartesian_2d(x.scale(xs), y.scale(ys.clone()))?;
    drawing
        .configure_mesh()
        .x_desc(&x.label)
        .y_desc(&y.label)
        .x_label_formatter(&|place| x.name(*place))
        .y_label_formatter(&|place| y.name(*place))
        .label_style(FONT)
        .draw()?;
    if let Some((at, meaning)) = mark {
        let at = x.place(*at);
        drawing
            .draw_series([PathElement::new([(at, ys.start), (at, ys.end)], BLACK.mix(0.5))])?
            .label(*meaning)
            .legend(|(x, y)| PathElement::new([(x, y), (x + 20, y)], BLACK.mix(0.5)));
    }
    for (index, Series { label, style, points }) in series.iter().enumerate() {
        let color = Palette99::pick(index).to_rgba();
        let places: Vec<(f64, f64)> = points.iter().map(|p| (x.place(p.x), y.place(p.y))).collect();
        let legend = move |(x, y)| PathElement::new([(x, y), (x + 20, y)], color.stroke_width(3));
        if *style != Style::Points {
            drawing.draw_series(LineSeries::new(places.iter().copied(), color.stroke_width(2)))?;
        }
        if *style != Style::Line {
            drawing.draw_series(places.iter().map(|place| Circle::new(*place, 4, color.filled())))?;
        }
        let ends = points.iter().filter_map(|point| Some((x.place(point.x), point.ends?)));
        let bars = ends.map(|(at, (low, high))| {
            PathElement::new([(at, y.place(low)), (at, y.place(high))], color.stroke_width(1))
        });
        drawing.draw_series(bars)?.label(label).legend(legend);
    }
    drawing
        .configure_series_labels()
        .position(match chart.free {
            Corner::UpperLeft => SeriesLabelPosition::UpperLeft,
            Corner::UpperRight => SeriesLabelPosition::UpperRight,
        })
        .border_style(BLACK)
        .background_style(WHITE.mix(0.85))
        .label_font(FONT)
        .draw()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axes_leave_room_and_begin_at_zero_where_that_means_something() {
        let range = |axis: Axis, values: &[f64]| axis.range(values.iter().copied());
        assert_eq!(range(Axis::linear(""), &[10.0, 30.0]), 0.0..31.5);
        assert_eq!(range(Axis::linear(""), &[-10.0, 10.0]), -11.0..11.0);
        let log = range(Axis::log(""), &[10.0, 1000.0]);
        assert!((log.start - 0.9).abs() < 1e-9 && (log.end - 3.1).abs() < 1e-9, "{log:?}");
        assert_eq!(Axis::log("").name(2.0), "100");
    }

    #[test]
    fn a_table_has_a_line_for_each_point() {
        let points = vec![Point::new(1.0, 2.0), Point { x: 3.0, y: 4.0, ends: Some((3.5, 5.0)) }];
        let series = vec![Series { label: "a \"b\"".into(), style: Style::Line, points }];
        let (x, y) = (Axis::linear(""), Axis::linear(""));
        let chart = Chart { x, y, series, free: Corner::UpperLeft, mark: None };
        assert_eq!(chart.csv(), "series,x,y,least,greatest\n\"a 'b'\",1,2,,\n\"a 'b'\",3,4,3.5,5\n");
    }
}
