//! What is shown and what keys do, without a terminal.
use std::time::Duration;

use super::*;

fn device(number: u8, called: &str, is_this: bool) -> Device {
    let id = whimbrel_base::SecretKey::from_bytes(&[number; 32]).id();
    let up = (!is_this).then(|| "present for 3m".to_owned());
    Device { id, called: called.to_owned(), name: format!("{called}.ada@example.org"), up, is_this }
}

fn session(number: u8, down: u64) -> Session {
    Session {
        id: format!("{number:02x}").repeat(16),
        what: format!("pipe shout{number}.home.bob@example.org"),
        holder: None,
        carried: Ways { down, up: 0 },
        place: Place::Here,
        stays: None,
    }
}

fn page(devices: Vec<Device>, sessions: Vec<Session>) -> Page {
    let mut page = Page::default();
    page.take(Some(devices), sessions, Instant::now());
    page
}

fn press(page: &mut Page, code: KeyCode) -> Option<Wanted> {
    page.key(KeyEvent::new(code, KeyModifiers::NONE))
}

/// What asks for a session to go to a device.
fn moves(number: u8, to: &Device) -> Option<Wanted> {
    Some(Wanted::Move(Box::new(session(number, 0)), to.clone()))
}

fn texts(page: &Page, width: usize, height: usize) -> Vec<String> {
    page.rows(width, height).into_iter().map(|row| row.text).collect()
}

#[test]
fn devices_with_presence_and_sessions_with_target_and_rate_are_shown() {
    let devices = vec![device(2, "desk", false), device(1, "phone", true)];
    let start = Instant::now();
    let mut page = Page::default();
    page.take(Some(devices), vec![session(1, 0)], start);
    page.take(None, vec![session(1, 2048)], start + Duration::from_secs(1));
    assert_eq!(
        texts(&page, 100, 9),
        [
            "Devices",
            "> desk          present for 3m  desk.ada@example.org",
            "  phone         this one  phone.ada@example.org",
            "Sessions",
            "> 01010101  2.00 KiB/s down, 0 B/s up       pipe shout1.home.bob@example.org",
            "",
            "",
            "",
            KEYS,
        ]
    );
}

#[test]
fn arrows_choose_and_enter_moves_what_was_chosen_once_at_a_time() {
    let devices = vec![device(2, "desk", false), device(3, "tablet", false), device(1, "phone", true)];
    let mut page = page(devices.clone(), vec![session(1, 0), session(2, 0)]);
    assert_eq!(press(&mut page, KeyCode::Down), None);
    // There is none behind the last.
    assert_eq!(press(&mut page, KeyCode::Down), None);
    assert_eq!(press(&mut page, KeyCode::Right), None);
    assert_eq!(press(&mut page, KeyCode::Enter), moves(2, &devices[1]));
    assert_eq!(press(&mut page, KeyCode::Enter), None, "the first move goes on");
    page.moved("02020202 went on at tablet".to_owned());
    assert!(texts(&page, 80, 12).contains(&"02020202 went on at tablet".to_owned()));
    // Round the other devices, and never to this one.
    for expected in [0, 1, 0] {
        press(&mut page, KeyCode::Tab);
        assert_eq!(press(&mut page, KeyCode::Char('m')), moves(2, &devices[expected]));
        page.moved(String::new());
    }
    press(&mut page, KeyCode::BackTab);
    press(&mut page, KeyCode::Up);
    assert_eq!(press(&mut page, KeyCode::Enter), moves(1, &devices[1]));
}

#[test]
fn what_is_chosen_stays_chosen_while_the_lists_change() {
    let devices = vec![device(2, "desk", false), device(3, "tablet", false)];
    let mut page = page(devices.clone(), vec![session(1, 0), session(2, 0)]);
    press(&mut page, KeyCode::Down);
    press(&mut page, KeyCode::Right);
    let more = vec![device(4, "tv", false), devices[0].clone(), devices[1].clone()];
    page.take(Some(more), vec![session(3, 0), session(1, 0), session(2, 0)], Instant::now());
    assert_eq!(press(&mut page, KeyCode::Enter), moves(2, &devices[1]));
    page.moved(String::new());
    // It has gone, and the device was removed: what there is is chosen.
    page.take(Some(vec![devices[0].clone()]), vec![session(3, 0)], Instant::now());
    assert_eq!(press(&mut page, KeyCode::Enter), moves(3, &devices[0]));
    page.moved(String::new());
    // The one in its place, and not the first one.
    page.take(None, vec![session(3, 0), session(4, 0), session(5, 0)], Instant::now());
    press(&mut page, KeyCode::Down);
    page.take(None, vec![session(3, 0), session(5, 0)], Instant::now());
    assert_eq!(press(&mut page, KeyCode::Enter), moves(5, &devices[0]));
}

#[test]
fn what_is_wrong_is_said_once_a_note_was_seen_and_nothing_that_is_said_controls_the_terminal() {
    let mut page = page(vec![device(2, "desk", false)], vec![session(1, 0)]);
    page.problem = Some("the gateway says \x1b[2Jno".to_owned());
    let said = |page: &Page| texts(page, 80, 10)[8].clone();
    assert_eq!(said(&page), "the gateway says \u{241b}[2Jno");
    assert!(press(&mut page, KeyCode::Enter).is_some());
    press(&mut page, KeyCode::Down);
    assert_eq!(said(&page), "01010101 goes to desk …", "it goes on");
    page.moved("01010101 went on at desk".to_owned());
    assert_eq!(said(&page), "01010101 went on at desk");
    press(&mut page, KeyCode::Down);
    assert_eq!(said(&page), "the gateway says \u{241b}[2Jno");
}

#[test]
fn what_cannot_move_says_why() {
    let mut alone = page(vec![device(1, "phone", true)], vec![session(1, 0)]);
    assert_eq!(press(&mut alone, KeyCode::Enter), None);
    assert!(alone.note.contains("no other device"), "{}", alone.note);
    let mut idle = page(vec![device(2, "desk", false)], Vec::new());
    assert_eq!(press(&mut idle, KeyCode::Enter), None);
    assert!(idle.note.contains("no session"), "{}", idle.note);
    let fixed = Session { stays: Some("its TLS ends in the program"), ..session(1, 0) };
    let mut fixed = page(vec![device(2, "desk", false)], vec![fixed]);
    assert_eq!(press(&mut fixed, KeyCode::Enter), None);
    assert_eq!(fixed.note, "01010101: its TLS ends in the program");
    for (code, wanted) in [(KeyCode::Char('q'), Wanted::End), (KeyCode::Esc, Wanted::End)] {
        assert_eq!(press(&mut fixed, code), Some(wanted));
    }
    let interrupt = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
    assert_eq!(fixed.key(interrupt), Some(Wanted::Interrupt));
}

#[test]
fn every_size_has_its_rows_and_what_is_chosen_is_among_them() {
    let wide = Device { name: "日本".repeat(50), ..device(9, &"画面".repeat(20), false) };
    let devices: Vec<_> =
        (2..40).map(|number| device(number, &format!("device{number}"), false)).chain([wide]).collect();
    let sessions: Vec<_> = (1..100).map(|number| session(number, 0)).collect();
    for count in [0, 1, 98] {
        for (width, height) in [(80, 24), (40, 9), (20, 8), (20, 7), (7, 3), (2, 2), (1, 1)] {
            let mut page = page(devices.clone(), sessions.clone());
            for _ in 0..count {
                press(&mut page, KeyCode::Down);
                press(&mut page, KeyCode::Right);
            }
            let rows = page.rows(width, height);
            assert_eq!(rows.len(), height, "{width} x {height}");
            assert!(rows.iter().all(|row| row.text.width() < width.max(1)), "{width}: {rows:#?}");
            if height >= 3 {
                let chosen = rows.iter().filter(|row| row.style == Style::Chosen).count();
                assert_eq!(chosen, if height >= SMALL { 2 } else { 1 }, "{rows:#?}");
            }
        }
    }
    let empty = Page::default();
    assert_eq!(empty.rows(80, 24).len(), 24);
}

#[test]
fn without_colours_a_row_has_none_and_what_is_chosen_still_stands_out() {
    let row = |style| Row { text: "x".to_owned(), style };
    assert_eq!(row(Style::Up).drawn(true), "\x1b[32mx\x1b[0m\x1b[K");
    assert_eq!(row(Style::Up).drawn(false), "x\x1b[K");
    assert_eq!(row(Style::Chosen).drawn(false), "\x1b[7mx\x1b[0m\x1b[K");
    assert_eq!(row(Style::Plain).drawn(true), "x\x1b[K");
}
