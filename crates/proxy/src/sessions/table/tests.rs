#![allow(clippy::unwrap_used)]
use super::rights::LENT;
use super::*;

const LIMIT: Duration = Duration::from_secs(60);

fn device(number: u8) -> EndpointId {
    EndpointId::from_bytes(&[number; 32])
}

struct Stage {
    table: Arc<Table>,
    listing: Listing,
    now: Instant,
    orders: mpsc::Receiver<Order>,
}

impl Stage {
    /// A session of device 1.
    fn new(rule: Takers) -> Self {
        let table = Arc::new(Table::default());
        let (sender, orders) = mpsc::channel(1);
        let listing = table.begin(device(1), "example.org:80".parse().unwrap(), rule, sender);
        Self { table, listing, now: Instant::now(), orders }
    }

    fn claim(&self, number: u8, moves: u32) -> Result<Claim, NoSession> {
        self.table.claim(device(number), self.listing.id(), moves, self.now)
    }

    fn permit(&self, holder: u8, number: u8) -> Result<(), NoSession> {
        let listed = self.table.list(device(holder), self.now);
        let moves = listed.first().map_or(0, |listed| listed.moves);
        self.table.permit(device(holder), (self.listing.id(), moves), device(number), LIMIT, self.now)
    }

    fn may(&self, number: u8) -> Option<May> {
        self.table.list(device(number), self.now).first().map(|listed| listed.may)
    }
}

#[test]
fn nobody_takes_a_session_without_consent_or_a_rule_and_nobody_else_lets_others() {
    let stage = Stage::new(Takers::default());
    assert!(stage.claim(2, 0).is_err() && stage.may(2).is_none());
    assert!(stage.permit(2, 2).is_err() && stage.claim(2, 0).is_err(), "a forged word of who has it not");
    let unknown = SessionId::fresh();
    assert!(stage.table.claim(device(1), unknown, 0, stage.now).is_err());
    assert!(stage.table.permit(device(1), (unknown, 0), device(2), LIMIT, stage.now).is_err());
    stage.permit(1, 2).unwrap();
    assert_eq!((stage.may(1), stage.may(2), stage.may(3)), (Some(May::Own), Some(May::Consent), None));
    assert!(stage.claim(3, 0).is_err(), "it is another one that may");
    stage.claim(2, 0).unwrap();
}

#[test]
fn a_permission_is_used_once_and_replaced_by_a_later_one() {
    let stage = Stage::new(Takers::default());
    stage.permit(1, 3).unwrap();
    stage.permit(1, 2).unwrap();
    assert!(stage.claim(3, 0).is_err(), "it was replaced");
    // A move that fails uses nothing up.
    drop(stage.claim(2, 0).unwrap());
    assert_eq!(stage.claim(2, 0).unwrap().confirm(Takers::default()).unwrap(), 1);
    assert!(stage.permit(1, 1).is_err(), "it is the other one's now");
    assert!(stage.claim(1, 1).is_err());
    stage.permit(2, 1).unwrap();
    assert_eq!(stage.claim(1, 1).unwrap().confirm(Takers::default()).unwrap(), 2);
    for moves in 0..4 {
        assert!(stage.claim(2, moves).is_err(), "what was used is said again");
    }
}

#[test]
fn a_permission_ends_with_its_time_and_a_rule_does_not() {
    let mut stage = Stage::new(Takers::new([device(4)]));
    stage.permit(1, 2).unwrap();
    stage.now += LIMIT - Duration::from_secs(1);
    drop(stage.claim(2, 0).unwrap());
    stage.now += Duration::from_secs(1);
    assert!(stage.claim(2, 0).is_err() && stage.may(2).is_none());
    let forever = Duration::from_secs(u16::MAX.into());
    stage.table.permit(device(1), (stage.listing.id(), 0), device(2), forever, stage.now).unwrap();
    stage.now += LONGEST_PERMISSION;
    assert!(stage.claim(2, 0).is_err(), "nothing is permitted for longer than an hour");
    assert_eq!(stage.may(4), Some(May::Rule));
    stage.claim(4, 0).unwrap();
}

#[test]
fn one_of_two_that_take_at_once_gets_it() {
    let stage = Stage::new(Takers::new([device(2), device(3)]));
    let mut first = stage.claim(2, 0).unwrap();
    assert!(stage.claim(3, 0).is_err() && stage.claim(1, 0).is_err(), "it is being taken");
    assert_eq!(stage.table.list(device(1), stage.now)[0].standing, Standing::Moving);
    first.confirm(Takers::new([device(3)])).unwrap();
    drop(first);
    assert!(stage.claim(3, 0).is_err(), "it asked for what the first one had");
    drop(stage.claim(1, 1).unwrap());
    assert!(stage.claim(4, 1).is_err());
    stage.claim(3, 1).unwrap();
}

#[test]
fn who_took_a_session_by_the_rule_cannot_lock_out_the_device_that_had_it() {
    let mut stage = Stage::new(Takers::new([device(2), device(5)]));
    // A thief, whose rule lets another one of its keys in, and says so too.
    stage.claim(2, 0).unwrap().confirm(Takers::new([device(3)])).unwrap();
    assert!(stage.claim(3, 1).is_err() && stage.may(5).is_none(), "both rules must have a device");
    assert_eq!(stage.may(1), Some(May::Rule));
    stage.permit(2, 3).unwrap();
    stage.claim(3, 1).unwrap().confirm(Takers::default()).unwrap();
    assert_eq!(stage.may(1), Some(May::Rule), "a word of the thief's does not end that");
    stage.table.set_rule(device(1), &Takers::new([device(5)]), stage.now);
    assert!(matches!(stage.orders.try_recv(), Ok(Order::Recall(from)) if from == device(3)));
    stage.listing.give_back(device(3));
    assert_eq!([1, 2, 3, 5].map(|it| stage.may(it)), [Some(May::Own), None, None, Some(May::Rule)]);
    assert!(stage.orders.try_recv().is_err());
}

#[test]
fn the_device_that_had_a_session_takes_it_back_whatever_the_takers_list_says_meanwhile() {
    let mut stage = Stage::new(Takers::new([device(2)]));
    stage.claim(2, 0).unwrap().confirm(Takers::new([device(1)])).unwrap();
    let mut back = stage.claim(1, 1).unwrap();
    stage.table.set_rule(device(2), &Takers::default(), stage.now);
    assert!(stage.orders.try_recv().is_err(), "it may still have it");
    back.confirm(Takers::default()).unwrap();
    assert_eq!([1, 2].map(|it| stage.may(it)), [Some(May::Own), None]);
}

#[test]
fn a_word_ends_with_the_right_of_the_device_that_said_it() {
    let mut stage = Stage::new(Takers::new([device(2)]));
    stage.claim(2, 0).unwrap().confirm(Takers::default()).unwrap();
    stage.permit(2, 3).unwrap();
    let mut taking = stage.claim(3, 1).unwrap();
    // Device 2 is removed while device 3 takes by its word.
    stage.table.set_rule(device(1), &Takers::default(), stage.now);
    assert!(matches!(stage.orders.try_recv(), Ok(Order::Recall(from)) if from == device(2)));
    stage.listing.give_back(device(2));
    assert!(taking.confirm(Takers::default()).is_err());
    drop(taking);
    assert_eq!([1, 2, 3].map(|it| stage.may(it)), [Some(May::Own), None, None]);
}

#[test]
fn a_lent_session_is_its_takers_alone_after_an_hour() {
    let mut stage = Stage::new(Takers::new([device(2)]));
    stage.claim(2, 0).unwrap().confirm(Takers::new([device(3)])).unwrap();
    stage.now += LENT + Duration::from_secs(60);
    assert_eq!([1, 2, 3].map(|it| stage.may(it)), [None, Some(May::Own), Some(May::Rule)]);
    stage.table.set_rule(device(1), &Takers::default(), stage.now);
    assert!(stage.orders.try_recv().is_err());
}

#[test]
fn a_rule_that_is_replaced_lets_those_in_that_it_names_and_stops_a_move_that_is_under_way() {
    let mut stage = Stage::new(Takers::new([device(2)]));
    let taking = stage.claim(2, 0).unwrap();
    stage.table.set_rule(device(9), &Takers::default(), stage.now);
    assert!(stage.orders.try_recv().is_err(), "it is not its session");
    stage.table.set_rule(device(1), &Takers::new([device(3)]), stage.now);
    assert!(matches!(stage.orders.try_recv(), Ok(Order::Recall(from)) if from == device(2)));
    drop(taking);
    assert_eq!([2, 3].map(|it| stage.may(it)), [None, Some(May::Rule)]);
}

#[test]
fn a_word_of_an_earlier_time_says_nothing_when_the_session_is_back() {
    let stage = Stage::new(Takers::default());
    let late =
        |moves| stage.table.permit(device(1), (stage.listing.id(), moves), device(2), LIMIT, stage.now);
    late(0).unwrap();
    stage.claim(2, 0).unwrap().confirm(Takers::default()).unwrap();
    stage.permit(2, 1).unwrap();
    stage.claim(1, 1).unwrap().confirm(Takers::default()).unwrap();
    assert!(late(0).is_err() && late(1).is_err() && stage.may(2).is_none());
    late(2).unwrap();
    assert_eq!(stage.may(2), Some(May::Consent));
}

#[test]
fn a_session_that_is_over_is_forgotten_and_a_claim_on_it_does_no_harm() {
    let stage = Stage::new(Takers::default());
    let mut claim = stage.claim(1, 0).unwrap();
    let id = stage.listing.id();
    drop(stage.listing);
    assert!(claim.confirm(Takers::default()).is_err());
    drop(claim);
    assert!(stage.table.claim(device(1), id, 0, stage.now).is_err());
    assert!(stage.table.sessions().is_empty());
}

#[test]
fn a_device_has_no_more_held_sessions_than_it_may_in_number_and_in_bytes() {
    let stage = Stage::new(Takers::default());
    let another = || {
        let (sender, _) = mpsc::channel(1);
        stage.table.begin(device(1), "example.org:80".parse().unwrap(), Takers::default(), sender)
    };
    let (second, third) = (another(), another());
    assert!(stage.listing.stands(false, 2, 100) && second.stands(false, 2, 100));
    assert!(!third.stands(false, 2, 100), "a third");
    assert!(second.stands(true, 2, 100) && third.stands(false, 2, 100));
    third.figures().kept.store(60, Ordering::Relaxed);
    second.figures().kept.store(41, Ordering::Relaxed);
    assert!(!second.stands(false, 3, 100), "too many bytes");
    assert!(second.stands(false, 3, 101));
}

#[test]
fn a_device_that_takes_a_session_and_leaves_again_and_again_must_wait() {
    let mut stage = Stage::new(Takers::new([device(2), device(3)]));
    let leave = |stage: &Stage| stage.claim(2, 0).map(|mut claim| claim.begins());
    for _ in 0..FREE_FAILURES {
        leave(&stage).unwrap();
    }
    assert!(leave(&stage).is_err());
    drop(stage.claim(3, 0).unwrap());
    stage.now = Instant::now() + FAILED;
    leave(&stage).unwrap();
    assert!(leave(&stage).is_err(), "for twice as long");
    stage.now = Instant::now() + 2 * FAILED;
    let mut claim = stage.claim(2, 0).unwrap();
    claim.begins();
    claim.confirm(Takers::new([device(2)])).unwrap();
    drop(claim);
    stage.claim(2, 1).unwrap();
}

#[test]
fn a_take_that_never_began_or_was_withdrawn_is_no_failure() {
    let stage = Stage::new(Takers::new([device(2)]));
    for _ in 0..=2 * FREE_FAILURES {
        drop(stage.claim(2, 0).unwrap());
        let mut claim = stage.claim(2, 0).unwrap();
        claim.begins();
        claim.withdrawn();
    }
}

#[test]
fn a_session_is_the_own_one_of_the_device_that_has_it_and_of_the_one_that_lent_it() {
    let stage = Stage::new(Takers::new([device(2)]));
    let taken = |stage: &Stage, number| {
        let claim = stage.claim(number, stage.table.list(device(1), stage.now)[0].moves).unwrap();
        (claim.is_own(), claim.is_lenders())
    };
    assert_eq!((taken(&stage, 1), taken(&stage, 2)), ((true, false), (false, false)));
    stage.claim(2, 0).unwrap().confirm(Takers::new([device(1)])).unwrap();
    assert_eq!((taken(&stage, 1), taken(&stage, 2)), ((true, true), (true, false)));
}

#[test]
fn a_lender_is_kept_off_once_whatever_moves_between_devices_that_have_the_session() {
    let stage = Stage::new(Takers::new([device(2)]));
    stage.claim(2, 0).unwrap().confirm(Takers::default()).unwrap();
    let back = stage.claim(1, 1).unwrap();
    assert!(!back.insists());
    back.is_kept_off();
    drop(back);
    // It takes it from itself, and lets another one take it.
    stage.claim(2, 1).unwrap().confirm(Takers::default()).unwrap();
    stage.permit(2, 3).unwrap();
    stage.claim(3, 2).unwrap().confirm(Takers::default()).unwrap();
    let mut back = stage.claim(1, 1).unwrap();
    assert!(back.insists());
    back.confirm(Takers::new([device(2)])).unwrap();
    drop(back);
    stage.claim(2, 4).unwrap().confirm(Takers::default()).unwrap();
    assert!(!stage.claim(1, 5).unwrap().insists(), "it is lent anew");
}

#[test]
fn a_session_that_moves_all_the_time_is_its_lenders_before_it_moves_again() {
    let mut stage = Stage::new(Takers::new([device(2)]));
    stage.claim(2, 0).unwrap().confirm(Takers::default()).unwrap();
    let mut again = stage.claim(2, 1).unwrap();
    assert!(stage.claim(1, 1).is_err(), "it moves");
    again.confirm(Takers::default()).unwrap();
    drop(again);
    assert!(stage.claim(2, 2).is_err(), "another one comes first");
    // It asks for what it was told of before.
    drop(stage.claim(1, 1).unwrap());
    assert!(stage.claim(2, 2).is_err());
    stage.now += Duration::from_secs(30);
    stage.claim(2, 2).unwrap();
}
