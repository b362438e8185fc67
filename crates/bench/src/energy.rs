//! An estimate of the energy that a phone's radios use. A model, not a measurement.
//!
//! The model is that of J. Huang, F. Qian, A. Gerber, Z. M. Mao, S. Sen, O. Spatscheck, "A Close Examination
//! of Performance and Power Characteristics of 4G LTE Networks", MobiSys 2012, measured on phones of that
//! time: waking a radio (promotion) costs a fixed energy; while data flows, power grows linearly with the
//! rates up and down; after the last packet the radio stays on for a while (tail). The screen, the processor
//! and the idle phone are not in it.
//!
//! Public programs that cite the paper confirm: slopes and base of LTE and Wi-Fi, the slope up and the base
//! of 3G, the power of LTE's promotion, the length of LTE's tail. Everything else is an assumption, from
//! which nothing should be quoted: the slope down of 3G, the length of LTE's promotion and the power of its
//! tail, promotions and tails of 3G and Wi-Fi.

use std::time::Duration;

/// Bytes that passed in one step of time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Activity {
    pub(crate) up: u64,
    pub(crate) down: u64,
}

impl Activity {
    fn is_idle(self) -> bool {
        self.up == 0 && self.down == 0
    }
}

/// So much power for so long.
#[derive(Debug, Clone, Copy)]
struct Phase {
    milliwatts: f64,
    length: Duration,
}

const fn phase(milliwatts: f64, micros: u64) -> Phase {
    Phase { milliwatts, length: Duration::from_micros(micros) }
}

/// How much power a radio draws when.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Radio {
    pub(crate) name: &'static str,
    promotion: Phase,
    /// While data flows, whatever the rate.
    base: f64,
    /// For each Mbit/s, on top.
    per_mbit_up: f64,
    per_mbit_down: f64,
    /// One after the other.
    tail: &'static [Phase],
}

pub(crate) const WIFI: Radio = Radio {
    name: "Wi-Fi",
    promotion: phase(124.4, 79_100),
    base: 132.86,
    per_mbit_up: 283.17,
    per_mbit_down: 137.01,
    tail: &[phase(119.3, 238_100)],
};

/// The tail in DCH, then in FACH.
pub(crate) const UMTS: Radio = Radio {
    name: "3G",
    promotion: phase(659.4, 582_100),
    base: 817.88,
    per_mbit_up: 868.98,
    per_mbit_down: 122.12,
    tail: &[phase(803.9, 8_088_200), phase(601.3, 824_200)],
};

pub(crate) const LTE: Radio = Radio {
    name: "LTE",
    promotion: phase(1210.7, 260_100),
    base: 1288.04,
    per_mbit_up: 438.39,
    per_mbit_down: 51.97,
    tail: &[phase(1060.0, 11_576_000)],
};

/// In joules.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Energy {
    pub(crate) promotion: f64,
    pub(crate) active: f64,
    pub(crate) tail: f64,
}

impl Energy {
    pub(crate) fn total(self) -> f64 {
        self.promotion + self.active + self.tail
    }
}

/// What a radio used for this activity, given step by step, and for the tail after it.
pub(crate) fn energy(radio: &Radio, activity: &[Activity], step: Duration) -> Energy {
    let mut energy = Energy::default();
    // Since the last data; `None` while the radio sleeps.
    let mut silent: Option<Duration> = None;
    for now in activity {
        if now.is_idle() {
            let Some(before) = silent else { continue };
            energy.tail += tail(radio, before, before + step);
            silent = Some(before + step).filter(|silent| *silent < tail_length(radio));
            continue;
        }
        if silent.is_none() {
            energy.promotion += joules(radio.promotion.milliwatts, radio.promotion.length);
        }
        energy.active += joules(power(radio, *now, step), step);
        silent = Some(Duration::ZERO);
    }
    energy.tail += silent.map_or(0.0, |silent| tail(radio, silent, tail_length(radio)));
    energy
}

/// In milliwatts, while data flows.
fn power(radio: &Radio, activity: Activity, step: Duration) -> f64 {
    let mbits = |bytes: u64| bytes as f64 * 8.0 / 1e6 / step.as_secs_f64();
    radio.base + radio.per_mbit_up * mbits(activity.up) + radio.per_mbit_down * mbits(activity.down)
}

fn joules(milliwatts: f64, time: Duration) -> f64 {
    milliwatts / 1000.0 * time.as_secs_f64()
}

fn tail_length(radio: &Radio) -> Duration {
    radio.tail.iter().map(|phase| phase.length).sum()
}

/// What the tail costs between two moments of it.
fn tail(radio: &Radio, from: Duration, to: Duration) -> f64 {
    let (mut sum, mut begin) = (0.0, Duration::ZERO);
    for phase in radio.tail {
        let end = begin + phase.length;
        sum += joules(phase.milliwatts, to.min(end).saturating_sub(from.max(begin)));
        begin = end;
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    const STEP: Duration = Duration::from_millis(100);

    fn down(bytes: u64) -> Activity {
        Activity { up: 0, down: bytes }
    }

    fn close(one: f64, other: f64) -> bool {
        (one - other).abs() < 1e-9
    }

    #[test]
    fn an_idle_radio_uses_nothing() {
        assert_eq!(energy(&LTE, &[Activity::default(); 50], STEP), Energy::default());
    }

    #[test]
    fn power_grows_with_the_rate() {
        // 10 Mbit/s for a second.
        let energy = energy(&LTE, &[down(125_000); 10], STEP);
        assert!(close(energy.active, 1.28804 + 0.5197), "{energy:?}");
        assert!(close(energy.promotion, 1.2107 * 0.2601), "{energy:?}");
        assert!(close(energy.tail, 1.06 * 11.576), "{energy:?}");
    }

    #[test]
    fn a_pause_shorter_than_the_tail_costs_tail_but_no_promotion() {
        let pause = |steps| [vec![down(1)], vec![Activity::default(); steps], vec![down(1)]].concat();
        let once = joules(WIFI.promotion.milliwatts, WIFI.promotion.length);
        let short = energy(&WIFI, &pause(2), STEP);
        assert!(close(short.promotion, once), "{short:?}");
        assert!(close(short.tail, 0.1193 * (0.2 + 0.2381)), "{short:?}");
        let long = energy(&WIFI, &pause(3), STEP);
        assert!(close(long.promotion, 2.0 * once), "{long:?}");
        assert!(close(long.tail, 0.1193 * 2.0 * 0.2381), "{long:?}");
    }

    #[test]
    fn the_tail_of_3g_falls_in_two_steps() {
        let energy = energy(&UMTS, &[down(1)], STEP);
        assert!(close(energy.tail, 0.8039 * 8.0882 + 0.6013 * 0.8242), "{energy:?}");
    }
}
