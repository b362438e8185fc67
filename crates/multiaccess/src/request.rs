//! What a line of a client asks for.

use crate::decide;
use crate::protocol::{Ask, Chosen, Offer, Report, Request, Steer, Watching};
use crate::refusal::Refusal;
use crate::target::Target;

/// The one thing that a line says.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Said {
    Ask(Ask),
    Report(Report),
    Watch(Watching),
    Policy(Offer),
    Choose(Chosen),
    Steer(Steer),
}

/// Reads a line, with the client's number of it. `None`: it is blank.
///
/// # Errors
/// Why it is no request, in words.
pub(crate) fn decode(line: &[u8]) -> Result<Option<(Option<u64>, Said)>, String> {
    if line.iter().all(u8::is_ascii_whitespace) {
        return Ok(None);
    }
    let request: Request =
        serde_json::from_slice(line).map_err(|error| format!("this line is no request: {error}"))?;
    let Request { id, ask, report, watch, policy, choose, steer } = request;
    let all = [
        ask.map(Said::Ask),
        report.map(Said::Report),
        watch.map(Said::Watch),
        policy.map(Said::Policy),
        choose.map(Said::Choose),
        steer.map(Said::Steer),
    ];
    let mut said = all.into_iter().flatten();
    match (said.next(), said.next()) {
        (Some(one), None) => Ok(Some((id, one))),
        _ => Err("a request has one of ask, report, watch, policy, choose and steer".to_owned()),
    }
}

/// Where a question leads, if it makes sense.
///
/// # Errors
/// What is wrong with it.
pub(crate) fn target(ask: &Ask) -> Result<Target, Refusal> {
    decide::check(ask).map_err(Refusal::wrong)?;
    Target::of(ask).map_err(Refusal::wrong)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_line_says_one_thing_and_may_have_a_number() {
        let (id, said) = decode(br#"{"id":7,"report":{"done":3}}"#).unwrap().unwrap();
        assert_eq!((id, said), (Some(7), Said::Report(Report { done: Some(3), ..Report::default() })));
        assert_eq!(decode(b" \t\r"), Ok(None));
        for wrong in [&b"{}"[..], br#"{"ask":{},"watch":{}}"#, b"hello", b"[]", b"{\"ask\":{}} x", b"\xff"] {
            assert!(decode(wrong).is_err(), "{wrong:?}");
        }
    }
}
