package postgres

import (
	"errors"
	"fmt"
	"os"
	"time"
)

const (
	// gatherBytes is how much of a long COPY the kernel gathers before it wakes the reader.
	// A server sends 8 KB at a time, and a reader who is woken for each of them spends a
	// tenth of its time on waking and going to sleep.
	gatherBytes = 64 << 10

	// gatherAfter is how much has to have come before that: a short COPY would wait for
	// nothing at its end.
	gatherAfter = 2 << 20

	// gatherPatience is how long a read waits for gatherBytes. The last ones never come.
	gatherPatience = 2 * time.Millisecond
)

// past is a deadline that ends what waits.
var past = time.Unix(1, 0)

// gather has reads wait for more than the next byte, where the system can do that.
func (s *Session) gather() {
	s.gathers = s.gathers || setLowWater(s.conn, gatherBytes) == nil
}

// endGather has them wait for a byte again.
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

// receive reads what there is, and waits for something.
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
	// Less than that has come, and perhaps nothing more for long.
	if err := s.endGather(); err != nil {
		return 0, err
	}
	return s.conn.Read(p)
}

// deadline sets that of reads, unless the statement is interrupted.
func (s *Session) deadline(t time.Time) error {
	err := s.conn.SetReadDeadline(t)
	if s.interrupted.Load() { // before, and t has come in place of past
		err = s.conn.SetReadDeadline(past)
	}
	return err
}
