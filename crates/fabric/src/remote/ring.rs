//! A ring in the reader's memory that one peer writes: a message is one WRITE, and neither side runs the other's code. The reader's count of what it has consumed is the
//! writer's credit; it is fetched by a READ only when credits have run out.

use super::slot::{self, Received, SlotShape};
use super::{Area, Home};
use crate::error::{FabricError, Fault};

/// The writing side. Only one may be there for a ring.
///
/// ```no_run
/// # use scalefabric_fabric::{endpoint::{Connection, Remote}, pool::Pool, remote::{Far, RingWriter, SlotShape}, FabricError};
/// # fn send(connection: &Connection, pool: &Pool) -> Result<(), FabricError> {
/// let shape = SlotShape { slots: 64, slot_bytes: 256 };
/// // The reader has offered its memory under number 7.
/// let area = Far::new(connection, Remote::Offered { id: 7, offset: 0 }, shape.bytes(), pool);
/// let mut ring = RingWriter::new(area, shape)?;
/// while !ring.try_send(b"hello")? {
///     std::thread::yield_now();
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct RingWriter<A> {
    area: A,
    shape: SlotShape,
    written: u64,
    consumed: u64,
    broken: Option<FabricError>,
}

impl<A: Area> RingWriter<A> {
    /// For a ring that nobody has written yet.
    pub fn new(area: A, shape: SlotShape) -> Result<Self, FabricError> {
        shape.check(area.length())?;
        Ok(Self { area, shape, written: 0, consumed: 0, broken: None })
    }

    /// Sends a message; false if the ring is full. An error ends the ring: whether the message arrived is unknown, and another in its place could
    /// overwrite it.
    pub fn try_send(&mut self, message: &[u8]) -> Result<bool, FabricError> {
        self.shape.check_message(message)?;
        if let Some(error) = &self.broken {
            return Err(error.clone());
        }
        if self.credits() == 0 {
            let consumed = slot::consumed(&self.area)?;
            if consumed < self.consumed || consumed > self.written {
                let error = FabricError::peer(format!(
                    "the reader says that it has consumed {consumed} of {} messages: its memory was overwritten",
                    self.written
                ));
                self.broken = Some(error.clone());
                return Err(error);
            }
            self.consumed = consumed;
            if self.credits() == 0 {
                return Ok(false);
            }
        }
        if let Err(failure) = slot::put(&self.area, &self.shape, self.written, message) {
            let error = FabricError::from(failure);
            self.broken = Some(FabricError::new(Fault::Closed, format!("the ring is broken: {error}; make a new one")));
            return Err(error);
        }
        self.written += 1;
        Ok(true)
    }

    /// Messages that can be sent without asking the reader.
    pub fn credits(&self) -> u64 {
        u64::from(self.shape.slots) - (self.written - self.consumed)
    }
}

/// The reading side, whose memory it is.
#[derive(Debug)]
pub struct RingReader<H> {
    home: H,
    shape: SlotShape,
    next: u64,
}

impl<H: Home> RingReader<H> {
    /// Over zeroed memory that the writer may write and read.
    pub fn new(home: H, shape: SlotShape) -> Result<Self, FabricError> {
        shape.check(home.length() as u64)?;
        Ok(Self { home, shape, next: 0 })
    }

    /// The next message, if it is there.
    pub fn try_receive(&mut self) -> Result<Option<Received>, FabricError> {
        let Some(message) = slot::take(&self.home, &self.shape, self.next)? else { return Ok(None) };
        self.next += 1;
        self.home.store_u64(0, self.next)?;
        Ok(Some(Received { message, sender: 0 }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::remote::stage::Stage;
    use std::sync::Arc;

    const SHAPE: SlotShape = SlotShape { slots: 4, slot_bytes: 64 };

    #[test]
    fn messages_arrive_in_order_and_credits_hold_the_writer() {
        let stage = Arc::new(Stage::new(SHAPE.bytes() as usize));
        let mut writer = RingWriter::new(stage.clone(), SHAPE).unwrap();
        let mut reader = RingReader::new(stage, SHAPE).unwrap();
        assert_eq!(reader.try_receive().unwrap(), None);
        for number in 0..4_u8 {
            assert!(writer.try_send(&[number; 32]).unwrap());
        }
        assert!(!writer.try_send(&[4; 32]).unwrap());
        assert_eq!(reader.try_receive().unwrap().unwrap().message, [0; 32]);
        assert!(writer.try_send(b"").unwrap());
        assert!(!writer.try_send(b"x").unwrap());
        assert_eq!(writer.try_send(&[0; 33]).unwrap_err().fault, Fault::Misuse);
        for number in 1..4_u8 {
            assert_eq!(reader.try_receive().unwrap().unwrap().message, [number; 32]);
        }
        assert_eq!(reader.try_receive().unwrap().unwrap().message, b"");
        assert_eq!(reader.try_receive().unwrap(), None);
    }

    #[test]
    fn two_threads_pass_everything_once() {
        let stage = Arc::new(Stage::new(SHAPE.bytes() as usize));
        let mut reader = RingReader::new(stage.clone(), SHAPE).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut writer = RingWriter::new(stage.clone(), SHAPE).unwrap();
                for number in 0..2000_u32 {
                    let message = vec![number as u8; (number % 33) as usize];
                    while !writer.try_send(&message).unwrap() {
                        std::thread::yield_now();
                    }
                }
            });
            for number in 0..2000_u32 {
                let came = loop {
                    match reader.try_receive().unwrap() {
                        Some(came) => break came,
                        None => std::thread::yield_now(),
                    }
                };
                assert_eq!(came.message, vec![number as u8; (number % 33) as usize]);
            }
        });
    }

    #[test]
    fn a_record_that_is_not_there_whole_does_not_count() {
        let stage = Arc::new(Stage::new(SHAPE.bytes() as usize));
        let mut writer = RingWriter::new(stage.clone(), SHAPE).unwrap();
        let mut reader = RingReader::new(stage.clone(), SHAPE).unwrap();
        assert!(writer.try_send(b"payload").unwrap());
        let mut last = [0];
        let at = SHAPE.slot(0) as usize + slot::RECORD_BYTES + 6;
        Home::read(&*stage, at, &mut last).unwrap();
        Home::write(&*stage, at, &[last[0] ^ 1]).unwrap();
        assert_eq!(reader.try_receive().unwrap(), None);
        Home::write(&*stage, at, &last).unwrap();
        assert_eq!(reader.try_receive().unwrap().unwrap().message, b"payload");
    }
}
