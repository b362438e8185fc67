//! `--limit NAME=VALUE` of a name service, and `whimbrel help service-limits`.

use std::fmt::Write as _;
use std::str::FromStr;
use std::time::Duration;

use whimbrel_names::Limits;

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// A limit that has no option of its own.
#[derive(Debug)]
struct Knob {
    name: &'static str,
    /// What is counted, in few words.
    what: &'static str,
    least: u32,
    most: u32,
    get: fn(&Limits) -> u64,
    set: fn(&mut Limits, u32),
}

/// A value of one of them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limit {
    knob: &'static Knob,
    value: u32,
}

impl Limit {
    pub(super) fn set(&self, limits: &mut Limits) {
        (self.knob.set)(limits, self.value);
    }
}

impl FromStr for Limit {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, value) = text.split_once('=').ok_or("write it as NAME=VALUE, as in mails-per-hour=5")?;
        let knob = KNOBS.iter().find(|knob| knob.name == name).ok_or_else(|| {
            format!("there is no limit {name:?}; `whimbrel help service-limits` lists them")
        })?;
        let (least, most) = (knob.least, knob.most);
        let parsed = value.parse::<u32>().ok().filter(|value| (least..=most).contains(value));
        let value = parsed.ok_or_else(|| format!("{name} is a whole number from {least} to {most}"))?;
        Ok(Self { knob, value })
    }
}

/// The table of `whimbrel help service-limits`.
pub(crate) fn table() -> String {
    let defaults = Limits::default();
    let mut text = "\
Limits of a name service, each --limit NAME=VALUE of `whimbrel names serve` and `whimbrel serve`; in a
configuration file limit = [\"NAME=VALUE\"]. An address is an IP address, or a /64 of IPv6.\n\n"
        .to_owned();
    put(&mut text, ["NAME", "DEFAULT", "RANGE", "WHAT"]);
    for Knob { name, what, least, most, get, .. } in KNOBS {
        put(&mut text, [name, &get(&defaults).to_string(), &format!("{least} to {most}"), what]);
    }
    text + "\n\
Fixed: 64 renewals, 16 appointments and 32 open requests a user, 64 connections a key, 32 readers a record,
10000 invitations that wait; 512 KiB of batches a user, 32 a key, 65536 in all."
}

fn put(text: &mut String, [name, default, range, what]: [&str; 4]) {
    // Writing to a string does not fail.
    let _ = writeln!(text, "  {name:<26}{default:>9}  {range:<15}  {what}");
}

const KNOBS: &[Knob] = &[
    Knob {
        name: "names",
        what: "names altogether",
        least: 1,
        most: 1_000_000_000,
        get: |limits| limits.names,
        set: |limits, value| limits.names = value.into(),
    },
    Knob {
        name: "watches",
        what: "watches altogether",
        least: 1,
        most: 10_000_000,
        get: |limits| limits.watchers as u64,
        set: |limits, value| limits.watchers = value as usize,
    },
    Knob {
        name: "watches-per-name",
        what: "watches of one name",
        least: 1,
        most: 10_000_000,
        get: |limits| limits.watchers_per_name as u64,
        set: |limits, value| limits.watchers_per_name = value as usize,
    },
    Knob {
        name: "days-held",
        what: "days that a device's name stays its owner's",
        least: 1,
        most: 365,
        get: |limits| in_days(limits.grace),
        set: |limits, value| limits.grace = value * DAY,
    },
    Knob {
        name: "days-held-for-users",
        what: "days that a user's name stays its owner's",
        // What was revoked is remembered for as long, and must be until the longest delegation ends.
        least: 365,
        most: 3650,
        get: |limits| in_days(limits.user_grace),
        set: |limits, value| limits.user_grace = value * DAY,
    },
    Knob {
        name: "meetings",
        what: "open meetings (codes) altogether",
        least: 1,
        most: whimbrel_names::protocol::MEETING_SLOTS as u32,
        get: |limits| limits.meetings.slots as u64,
        set: |limits, value| limits.meetings.slots = value as usize,
    },
    Knob {
        name: "meetings-per-key",
        what: "open meetings of one key",
        least: 1,
        most: 64,
        get: |limits| limits.meetings.per_peer as u64,
        set: |limits, value| limits.meetings.per_peer = value as usize,
    },
    Knob {
        name: "joins-per-minute",
        what: "tries to join a meeting, by a key in a minute",
        least: 1,
        most: 1000,
        get: |limits| limits.meetings.joins_per_minute.into(),
        set: |limits, value| limits.meetings.joins_per_minute = value,
    },
    Knob {
        name: "joins-per-address",
        what: "the same from one address",
        least: 1,
        most: 10_000,
        get: |limits| limits.meetings.joins_per_address.into(),
        set: |limits, value| limits.meetings.joins_per_address = value,
    },
    Knob {
        name: "redeems-per-minute",
        what: "tries to redeem an invitation, by a key in a minute",
        least: 1,
        most: 1000,
        get: |limits| limits.turns.redeems_per_minute.into(),
        set: |limits, value| limits.turns.redeems_per_minute = value,
    },
    Knob {
        name: "redeems-per-address",
        what: "the same from one address",
        least: 1,
        most: 10_000,
        get: |limits| limits.turns.redeems_per_address.into(),
        set: |limits, value| limits.turns.redeems_per_address = value,
    },
    Knob {
        name: "asked-users-per-hour",
        what: "requests to other users, by a key in an hour",
        least: 1,
        most: 10_000,
        get: |limits| limits.turns.proposals_per_hour.into(),
        set: |limits, value| limits.turns.proposals_per_hour = value,
    },
    Knob {
        name: "asked-users-per-address",
        what: "the same from one address",
        least: 1,
        most: 100_000,
        get: |limits| limits.turns.proposals_per_address.into(),
        set: |limits, value| limits.turns.proposals_per_address = value,
    },
    Knob {
        name: "batches-per-hour",
        what: "batches for a user's devices, by a key in an hour",
        least: 1,
        most: 10_000,
        get: |limits| limits.turns.batches_per_hour.into(),
        set: |limits, value| limits.turns.batches_per_hour = value,
    },
    Knob {
        name: "batches-per-address",
        what: "the same from one address",
        least: 1,
        most: 100_000,
        get: |limits| limits.turns.batches_per_address.into(),
        set: |limits, value| limits.turns.batches_per_address = value,
    },
    Knob {
        name: "mails-per-hour",
        what: "mails with codes, asked for by a key in an hour",
        least: 1,
        most: 1000,
        get: |limits| limits.turns.mails_per_hour.into(),
        set: |limits, value| limits.turns.mails_per_hour = value,
    },
    Knob {
        name: "mails-per-address",
        what: "the same from one address",
        least: 1,
        most: 10_000,
        get: |limits| limits.turns.mails_per_address.into(),
        set: |limits, value| limits.turns.mails_per_address = value,
    },
    Knob {
        name: "mails-to-one",
        what: "mails to one mail address in an hour",
        least: 1,
        most: 100,
        get: |limits| limits.turns.mails_to_one.into(),
        set: |limits, value| limits.turns.mails_to_one = value,
    },
];

fn in_days(time: Duration) -> u64 {
    time.as_secs() / DAY.as_secs()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn each_limit_sets_what_it_shows_and_its_default_is_within_its_range() {
        for knob in KNOBS {
            let default = (knob.get)(&Limits::default());
            assert!((u64::from(knob.least)..=u64::from(knob.most)).contains(&default), "{}", knob.name);
            for value in [knob.least, knob.most] {
                let mut limits = Limits::default();
                format!("{}={value}", knob.name).parse::<Limit>().unwrap().set(&mut limits);
                assert_eq!((knob.get)(&limits), u64::from(value), "{}", knob.name);
                let others = KNOBS.iter().filter(|other| other.name != knob.name);
                for other in others {
                    assert_eq!((other.get)(&limits), (other.get)(&Limits::default()), "{}", other.name);
                }
            }
            for wrong in [knob.least - 1, knob.most + 1] {
                let error = format!("{}={wrong}", knob.name).parse::<Limit>().unwrap_err();
                assert!(error.contains("a whole number from"), "{error}");
            }
        }
    }

    #[test]
    fn the_table_has_a_line_for_each_limit_and_fits_a_screen() {
        let table = table();
        for knob in KNOBS {
            let beginning = format!("  {} ", knob.name);
            let count = table.lines().filter(|line| line.starts_with(&beginning)).count();
            assert_eq!(count, 1, "{}:\n{table}", knob.name);
        }
        assert!(table.lines().count() <= 40, "{table}");
        assert!(table.lines().all(|line| line.chars().count() <= 110), "{table}");
    }
}
