package profile

import (
	"net"
	"testing"
)

// slowConn is a connection whose reads tell that they have begun, and end when
// they are let.
type slowConn struct {
	net.Conn
	began, arrived chan struct{}
}

func (c *slowConn) Read(b []byte) (int, error) {
	c.began <- struct{}{}
	<-c.arrived
	return len(b), nil
}

func (c *slowConn) Write(b []byte) (int, error) { return len(b), nil }

// A driver that reads in the background may begin in one operation to read the
// answer of the next.
func TestReadBelongsToTheOperationInWhichItEnds(t *testing.T) {
	for _, attached := range []bool{true, false} {
		conn := &slowConn{began: make(chan struct{}), arrived: make(chan struct{})}
		w := &wire{Conn: conn, clock: newClock()}
		before, present := newTimeline(), newTimeline()
		before.start(w.clock.Now())
		if attached {
			w.attach(before)
		}
		ended := make(chan error, 1)
		go func() {
			_, err := w.Read(make([]byte, 8))
			ended <- err
		}()
		<-conn.began
		present.start(w.clock.Now())
		w.attach(present)
		present.callBegins(w.clock.Now())
		if _, err := w.Write([]byte("question")); err != nil {
			t.Fatal(err)
		}
		close(conn.arrived)
		if err := <-ended; err != nil {
			t.Fatal(err)
		}
		if _, trips, _ := present.end(w.clock.Now()); trips != 1 {
			t.Errorf("begun in another operation %v: %d round trips, want 1", attached, trips)
		}
	}
}
