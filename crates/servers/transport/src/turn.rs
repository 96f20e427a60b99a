//! Takes the commands of a session in its turn, as many as its share of the round and its pace allow.

use atoll_base::Instant;
use atoll_ipc::ledger::Work;
use atoll_ipc::page::Stat;
use atoll_ipc::{Command, Memory};

use crate::commands::{Carried, cost};
use crate::transport::Transport;

impl<M: Memory> Transport<M> {
    /// Takes commands of one session, for up to `budget`. Returns what they cost; the last one may cost more
    /// than was left.
    pub(crate) fn handle_commands_of(&mut self, now: Instant, index: u32, budget: u32) -> u32 {
        let Some(session) = self.applications.get_mut(index) else { return 0 };
        session.pace.ask_again();
        if !session.has_command() {
            session.note_taken(false);
            return 0;
        }
        // This comes before they are read.
        let id = session.id;
        self.durability.mark(Work::Commands(id));
        let mut spent = 0;
        while spent < budget {
            if self.cm.is_crowded() {
                break;
            }
            let Some(session) = self.applications.get_mut(index).filter(|session| session.hears()) else {
                break;
            };
            if session.is_paced(now) {
                break;
            }
            let Some(command) = session.pop() else {
                session.note_taken(false);
                break;
            };
            spent += command.as_ref().map_or(1, cost);
            let refused = self.stats.get(Stat::BadCommands);
            let is_membership = matches!(command, Ok(Command::Group { .. }));
            let carried = match command {
                Ok(command) => {
                    if self.is_adopting() {
                        self.adopt_for(now, index, &command);
                    }
                    self.handle_command(now, index, command)
                }
                Err(_) => {
                    self.stats.count(Stat::BadCommands);
                    Carried::Out
                }
            };
            spent = spent.saturating_add(self.load.take_command());
            let Some(session) = self.applications.get_mut(index) else { break };
            if carried == Carried::Later {
                session.put_back();
                break;
            }
            session.note_taken(true);
            if is_membership || self.stats.get(Stat::BadCommands) != refused {
                session.pace.note(now);
            }
            self.stats.count(Stat::Commands);
        }
        self.durability.mark(Work::Nothing);
        spent
    }
}
