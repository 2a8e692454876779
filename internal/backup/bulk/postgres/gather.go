package postgres

import (
	"errors"
	"fmt"
	"os"
	"time"
)

const (
	// gatherBytes is how much of a long COPY the kernel collects before it wakes the reader. A
	// server sends 8 KB at a time, and a reader that is woken for each piece spends a tenth of
	// its time on sleeping and waking.
	gatherBytes = 64 << 10

	// gatherAfter is how much of a COPY is read before that: a short COPY would wait in vain at
	// its end.
	gatherAfter = 2 << 20

	// gatherPatience is how long a read waits for gatherBytes, which never arrive at the end.
	gatherPatience = 2 * time.Millisecond
)

// past is a deadline that interrupts a waiting read.
var past = time.Unix(1, 0)

// gather makes reads wait for more than the next byte, if the system supports that.
func (s *Session) gather() {
	s.gathers = s.gathers || setLowWater(s.conn, gatherBytes) == nil
}

// endGather makes reads wait for a byte again.
func (s *Session) endGather() error {
	if !s.gathers || s.broken != nil {
		return nil
	}
	s.gathers = false
	err := setLowWater(s.conn, 1)
	if err == nil {
		err = s.deadline(time.Time{})
	}
	if err != nil {
		return s.fail(fmt.Errorf("wait for less of a COPY: %w", err))
	}
	return nil
}

// receive reads the available bytes, and waits until there are some.
func (s *Session) receive(p []byte) (int, error) {
	if !s.gathers {
		return s.conn.Read(p)
	}
	if err := s.deadline(time.Now().Add(gatherPatience)); err != nil {
		return 0, err
	}
	n, err := s.conn.Read(p)
	if n > 0 || !errors.Is(err, os.ErrDeadlineExceeded) || s.interrupted.Load() {
		return n, err
	}
	// Fewer bytes have arrived, and perhaps no more will for a long time.
	if err := s.endGather(); err != nil {
		return 0, err
	}
	return s.conn.Read(p)
}

// deadline sets the deadline of reads, unless the statement was interrupted.
func (s *Session) deadline(t time.Time) error {
	err := s.conn.SetReadDeadline(t)
	if s.interrupted.Load() { // before this call, which has replaced the deadline
		err = s.conn.SetReadDeadline(past)
	}
	return err
}
