//! MPEG transport streams (ISO/IEC 13818-1, §2.4): a player reads the two tables that say what is where, and
//! goes on with any packet of the pictures that says that it may.

use super::{Index, Unfit};

const PACKET: usize = 188;
/// Each packet begins so.
pub(super) const SYNC: u8 = 0x47;
/// Where the table of programs is, and the ids of that table and of a program's own.
const PROGRAMS: u16 = 0;
const PROGRAMS_TABLE: u8 = 0;
const PROGRAM_TABLE: u8 = 2;
/// Of a packet's second byte: something begins in it.
const BEGINS: u8 = 0x40;
/// Of the first flags of an adaptation field: what begins can be entered.
const MAY_ENTER: u8 = 0x40;
/// Behind each table.
const SUM: usize = 4;
/// Types of streams with pictures: MPEG-1, -2 and -4, H.264 with its extensions, HEVC, VVC, AVS, Dirac, VC-1.
const PICTURES: [u8; 12] = [0x01, 0x02, 0x10, 0x1b, 0x20, 0x21, 0x24, 0x33, 0x42, 0xd1, 0xd2, 0xea];

/// How far one is read.
#[derive(Default)]
pub(super) struct Packets {
    /// Where the packet begins that comes.
    at: u64,
    begin: Vec<u8>,
    stage: Stage,
}

#[derive(Clone, Copy, Default)]
enum Stage {
    #[default]
    Start,
    /// The table of the first program is in packets with this number.
    Program(u16),
    /// Its pictures are in these, or its first sounds if it has no pictures.
    Pictures(u16),
}

impl Packets {
    pub(super) fn sees(&mut self, bytes: &[u8], index: &mut Index) -> Result<(), Unfit> {
        let mut rest = bytes;
        while !rest.is_empty() {
            let (some, behind) = rest.split_at(rest.len().min(PACKET - self.begin.len()));
            rest = behind;
            if some.len() == PACKET {
                self.packet(some, index)?;
                continue;
            }
            self.begin.extend_from_slice(some);
            if self.begin.len() == PACKET {
                let packet = std::mem::take(&mut self.begin);
                self.packet(&packet, index)?;
            }
        }
        Ok(())
    }

    fn packet(&mut self, packet: &[u8], index: &mut Index) -> Result<(), Unfit> {
        let at = self.at;
        self.at += packet.len() as u64;
        let [SYNC, high, low, control, rest @ ..] = packet else { return Err(Unfit) };
        let number = u16::from_be_bytes([high & 0x1f, *low]);
        if high & BEGINS == 0 {
            return Ok(());
        }
        let (adaptation, payload) = parts(*control, rest)?;
        self.stage = match self.stage {
            Stage::Start if number == PROGRAMS => {
                index.keep(packet)?;
                Stage::Program(first_program(payload).ok_or(Unfit)?)
            }
            Stage::Program(table) if number == table => {
                index.keep(packet)?;
                Stage::Pictures(pictures(payload).ok_or(Unfit)?)
            }
            Stage::Pictures(pictures) if number == pictures => {
                if adaptation.first().is_some_and(|flags| flags & MAY_ENTER != 0) {
                    index.enter(at);
                }
                return Ok(());
            }
            stage => stage,
        };
        Ok(())
    }
}

/// A packet's adaptation field, and what it carries.
fn parts(control: u8, rest: &[u8]) -> Result<(&[u8], &[u8]), Unfit> {
    let (has_adaptation, has_payload) = (control & 0x20 != 0, control & 0x10 != 0);
    let (adaptation, payload) = match rest.split_first() {
        Some((length, rest)) if has_adaptation => rest.split_at_checked(usize::from(*length)).ok_or(Unfit)?,
        _ => (b"".as_slice(), rest),
    };
    Ok((adaptation, if has_payload { payload } else { &[] }))
}

/// A table that begins in this packet and ends in it too, without its head and its sum.
fn table(payload: &[u8], id: u8) -> Option<&[u8]> {
    let (skip, rest) = payload.split_first()?;
    let [found, high, low, rest @ ..] = rest.get(usize::from(*skip)..)? else { return None };
    let length = usize::from(u16::from_be_bytes([high & 0x0f, *low]));
    let (inside, _) = rest.get(..length)?.split_at_checked(length.checked_sub(SUM)?)?;
    (*found == id).then_some(inside)
}

/// Where the table of the first program is.
fn first_program(payload: &[u8]) -> Option<u16> {
    let programs = table(payload, PROGRAMS_TABLE)?.get(5..)?;
    programs.chunks_exact(4).find_map(|program| match program {
        // That is about the network.
        [0, 0, ..] => None,
        [_, _, high, low] => Some(u16::from_be_bytes([high & 0x1f, *low])),
        _ => None,
    })
}

/// Where a program's pictures are, or what comes first if it has none.
fn pictures(payload: &[u8]) -> Option<u16> {
    let [_, _, _, _, _, _, _, high, low, rest @ ..] = table(payload, PROGRAM_TABLE)? else { return None };
    let mut rest = rest.get(usize::from(u16::from_be_bytes([high & 0x0f, *low]))..)?;
    let mut first = None;
    while let [kind, high, low, more_high, more_low, behind @ ..] = rest {
        let number = u16::from_be_bytes([high & 0x1f, *low]);
        if PICTURES.contains(kind) {
            return Some(number);
        }
        first = first.or(Some(number));
        rest = behind.get(usize::from(u16::from_be_bytes([more_high & 0x0f, *more_low]))..)?;
    }
    first
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::super::found_in;
    use super::*;

    /// A packet with this number, in which something begins.
    fn packet(number: u16, flags: Option<u8>, payload: &[u8]) -> Vec<u8> {
        let [high, low] = number.to_be_bytes();
        let mut packet = vec![SYNC, BEGINS | high, low, 0x10];
        if let Some(flags) = flags {
            packet[3] |= 0x20;
            packet.extend_from_slice(&[1, flags]);
        }
        packet.extend_from_slice(payload);
        assert!(packet.len() <= PACKET);
        packet.resize(PACKET, 0xff);
        packet
    }

    fn table_of(id: u8, inside: &[u8]) -> Vec<u8> {
        let length = u8::try_from(inside.len() + SUM).unwrap();
        [&[0, id, 0xb0, length][..], inside, &[9; SUM]].concat()
    }

    fn programs() -> Vec<u8> {
        packet(0, None, &table_of(0, &[0, 1, 0xc1, 0, 0, 0, 0, 0xe0, 0x10, 0, 1, 0xf0, 0x00]))
    }

    /// A program with sounds in packets 0x101, and perhaps with pictures in 0x100.
    fn program(has_pictures: bool) -> Vec<u8> {
        let mut inside = vec![0, 1, 0xc1, 0, 0, 0xe1, 0, 0xf0, 2, 5, 5, 0x0f, 0xe1, 0x01, 0xf0, 1, 7];
        if has_pictures {
            inside.extend_from_slice(&[0x1b, 0xe1, 0x00, 0xf0, 0]);
        }
        packet(0x1000, None, &table_of(2, &inside))
    }

    #[test]
    fn a_player_is_given_the_tables_and_may_enter_where_the_pictures_say_so() {
        let begin = [packet(0x11, None, b"of the service"), programs(), program(true)].concat();
        let given = [programs(), program(true)].concat();
        assert_eq!(found_in(&begin).unwrap(), (given.clone(), vec![]));
        let all = [
            begin,
            packet(0x101, Some(MAY_ENTER), b"sound"),
            packet(0x100, Some(MAY_ENTER), b"picture"),
            packet(0x100, Some(0), b"picture"),
            packet(0x100, None, b"picture"),
            programs(),
            program(true),
            packet(0x100, Some(MAY_ENTER | 0x10), b"picture"),
        ];
        let places = [4, 9].map(|packet| packet * PACKET as u64).to_vec();
        assert_eq!(found_in(&all.concat()).unwrap(), (given, places));
    }

    #[test]
    fn without_pictures_sounds_say_where() {
        let all = [programs(), program(false), packet(0x101, Some(MAY_ENTER), b"sound")].concat();
        assert_eq!(found_in(&all).unwrap().1, [2 * PACKET as u64]);
    }

    #[test]
    fn what_is_no_transport_stream_is_none() {
        let long = packet(0x1000, None, &[&[0, 2, 0xb1, 0xff][..], &[0; 90]].concat());
        for bad in [
            b"GIF89a, and then something else".repeat(20),
            [programs(), long].concat(),
            packet(0, None, &table_of(2, &[0; 9])),
            [programs(), vec![0; PACKET]].concat(),
        ] {
            assert_eq!(found_in(&bad), None);
        }
    }
}
