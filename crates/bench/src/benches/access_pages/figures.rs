//! The paper's Figures 4 and 5, of what was measured here.

use anyhow::Result;
use serde_json::Value;

use super::browser::Browser;
use super::load::Load;
use super::scenario::SCENARIOS;
use super::system::System;
use crate::output::Output;
use crate::plot::{Axis, Chart, Corner, Point, Series, Style};
use crate::report::{Plot, Spec};
use crate::stats::Spread;

/// What Figure 4 shows, and ours beside it.
const SYSTEMS: [System; 4] = [System::Single(1), System::Single(2), System::Eaf, System::Whimbrel];
/// Figure 4 for each scenario.
const FIGURE_4: [Spec; 4] = [
    figure("access-pages-figure-4-symmetric", "load times of handcrafted pages, symmetric scenario"),
    figure("access-pages-figure-4-asymmetric", "load times of handcrafted pages, asymmetric scenario"),
    figure("access-pages-figure-4-strongly", "load times of handcrafted pages, strongly asymmetric scenario"),
    figure("access-pages-figure-4-recorded", "load times of handcrafted pages, Wi-Fi and recorded LTE"),
];
const FIGURE_5: Spec = figure("access-pages-figure-5", "load times, measured and simulated, of all pages");

const fn figure(name: &'static str, title: &'static str) -> Spec {
    Spec { name, title, metrics: &[], targets: &[], plot: Plot::Chart }
}

/// Draws and keeps the figures that there is something for.
pub(super) fn finish(loads: &[Load], settings: &Value, output: &mut Output) -> Result<()> {
    for (spec, scenario) in FIGURE_4.iter().zip(&SCENARIOS) {
        let own: Vec<&Load> = loads.iter().filter(|load| load.scenario == scenario.name).collect();
        let chart = figure_4(&own);
        if !chart.is_empty() {
            output.finish_chart(spec, settings.clone(), &[], Some(&chart))?;
        }
    }
    let chart = figure_5(loads);
    output.finish_chart(&FIGURE_5, settings.clone(), &[], Some(&chart))
}

/// Times over the pages' sizes, as the small loader found them, or the browser that there is.
fn figure_4(loads: &[&Load]) -> Chart {
    let browsers = [Browser::Client, Browser::Chromium, Browser::Firefox];
    let first = browsers.into_iter().find(|browser| loads.iter().any(|load| load.browser == *browser));
    let series = SYSTEMS.map(|system| {
        let own = loads
            .iter()
            .copied()
            .filter(|load| Some(load.browser) == first && load.system == system && !load.is_recorded);
        let own: Vec<&Load> = own.collect();
        let mut points: Vec<Point> = by_page(&own)
            .into_iter()
            .filter_map(|loads| {
                let times: Vec<f64> = loads.iter().map(|load| load.ms).collect();
                Point::of(loads.first()?.bytes as f64 / 1000.0, &times)
            })
            .collect();
        points.sort_by(|a, b| a.x.total_cmp(&b.x));
        Series { label: system.to_string(), style: Style::Points, points }
    });
    let (x, y) = (Axis::log("the page's size, kB"), Axis::log("load time, ms"));
    Chart { x, y, series: series.into(), free: Corner::UpperLeft, mark: None }
}

/// Measured over simulated times, a point for each case, and where both are equal.
fn figure_5(loads: &[Load]) -> Chart {
    let mut series: Vec<Series> = Vec::new();
    for system in System::ALL {
        let own: Vec<&Load> = loads.iter().filter(|load| load.system == system).collect();
        let points = by_page(&own).into_iter().filter_map(|loads| {
            let times: Vec<f64> = loads.iter().map(|load| load.ms).collect();
            Some(Point::new(loads.first()?.predicted?, Spread::of(&times)?.median))
        });
        let points: Vec<Point> = points.collect();
        if !points.is_empty() {
            series.push(Series { label: system.to_string(), style: Style::Points, points });
        }
    }
    let all = series.iter().flat_map(|series| &series.points).map(|point| point.x);
    let (least, most) = all.fold((f64::INFINITY, 0.0_f64), |(a, b), x| (a.min(x), b.max(x)));
    if least < most {
        let points = vec![Point::new(least, least), Point::new(most, most)];
        series.push(Series { label: "equal".to_owned(), style: Style::Line, points });
    }
    let (x, y) = (Axis::log("simulated, ms"), Axis::log("measured, ms"));
    Chart { x, y, series, free: Corner::UpperLeft, mark: None }
}

/// Loads of the same page by the same browser in the same scenario.
fn by_page<'a>(loads: &[&'a Load]) -> Vec<Vec<&'a Load>> {
    let mut groups: Vec<Vec<&Load>> = Vec::new();
    for load in loads {
        let is_same = |group: &&mut Vec<&Load>| {
            group.first().is_some_and(|other| {
                (other.browser, other.scenario, &other.page) == (load.browser, load.scenario, &load.page)
            })
        };
        match groups.iter_mut().find(is_same) {
            Some(group) => group.push(load),
            None => groups.push(vec![load]),
        }
    }
    groups
}
