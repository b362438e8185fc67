//! All tests of this crate in one program, which is built in a fraction of the time that a program for each
//! file takes.

mod candidates;
mod closing;
mod credit;
mod cuts;
mod datagrams;
mod floods;
mod frames;
mod hand_over;
mod handover;
mod hostile;
mod hostile_leaving;
mod journals;
mod many_streams;
mod message_delays;
mod message_model;
mod messages;
mod moves;
mod multipath;
mod one_way;
mod opening;
mod pacing;
mod path_ends;
mod predecessors;
mod properties;
mod protocol_doc;
mod resting;
mod retire;
mod schedulers;
mod simulation;
mod streams;
mod suspend;
mod timers;
