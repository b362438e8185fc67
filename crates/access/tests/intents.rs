//! Intents in text, TOML and JSON.
#![allow(clippy::unwrap_used)]

use crate::support::intents;
use proptest::prelude::*;
use whimbrel_access::{Cost, IntentError, Intents, Timeliness};

proptest! {
    #[test]
    fn what_is_printed_is_read_back(intents in intents(any::<[Option<u64>; 5]>())) {
        prop_assume!(intents.validate().is_ok());
        prop_assert_eq!(intents.to_string().parse(), Ok(intents));
        let json = serde_json::to_string(&intents).unwrap();
        prop_assert_eq!(serde_json::from_str::<Intents>(&json).unwrap(), intents);
    }

    #[test]
    fn no_text_makes_the_reader_panic(text in ".{0,60}") {
        let _ = text.parse::<Intents>();
    }

    #[test]
    fn sizes_never_overflow(intents in intents(any::<[Option<u64>; 5]>())) {
        let _ = intents.size();
    }
}

#[test]
fn what_is_not_said_follows_from_the_category() {
    let intents: Intents = "category=query".parse().unwrap();
    assert_eq!(intents.timeliness(), Timeliness::Interactive);
    assert_eq!(Intents::default().cost(), Cost::Balance);
    assert_eq!(Intents::default().size(), None);
    let stream: Intents = "category=stream duration=2000,bitrate-received=1000".parse().unwrap();
    assert_eq!(stream.size(), Some(2000));
}

#[test]
fn errors_name_the_intent_and_what_it_should_be() {
    let error = |text: &str| text.parse::<Intents>().unwrap_err().to_string();
    assert_eq!(error("hurry"), "`hurry` is not of the form key=value");
    assert!(error("speed=1").starts_with("`speed` is no intent; they are: category"));
    assert_eq!(error("cost=cheap"), "intent cost: `cheap` is not one of no-expense optimise balance ignore");
    assert_eq!(error("duration=1s"), "intent duration: `1s` is not a whole number from 0 on");
    assert_eq!("cost=ignore cost=ignore".parse::<Intents>(), Err(IntentError::Twice("cost")));
    assert!(error("category=control timeliness=background").contains("exclude each other"));
}
