package netloop

import (
	"bytes"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// pressure is what the kernel says of the loop's thread: for how long it was ready to
// run while others had the processors.
type pressure struct {
	fd      int // of schedstat; -1 without
	at      time.Duration
	waited  time.Duration
	pressed bool
}

// A loop is pressed from the share of its time on which it waits for a processor, and
// is so until that is half as much.
const pressedFrom = 0.2

// watch opens the thread's statistics. Without them a loop is never pressed.
func (p *pressure) watch(now time.Duration) {
	fd, err := unix.Open("/proc/thread-self/schedstat", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		fd = -1
	}
	p.fd, p.at = fd, now
	p.waited, _ = p.read()
}

func (p *pressure) end() {
	if p.fd >= 0 {
		_ = unix.Close(p.fd)
		p.fd = -1
	}
}

// read returns how long the thread has waited since its start.
func (p *pressure) read() (time.Duration, bool) {
	if p.fd < 0 {
		return 0, false
	}
	var buf [96]byte
	n, err := unix.Pread(p.fd, buf[:], 0)
	if err != nil {
		return 0, false
	}
	return parseSchedstat(buf[:n])
}

// parseSchedstat reads the second of three numbers: ran, waited, times.
func parseSchedstat(p []byte) (waited time.Duration, ok bool) {
	f := bytes.Fields(p)
	if len(f) < 2 {
		return 0, false
	}
	n, err := strconv.ParseInt(string(f[1]), 10, 64)
	return time.Duration(n), err == nil
}

// look takes the latest figures.
func (p *pressure) look(now time.Duration) {
	waited, ok := p.read()
	if !ok || now <= p.at {
		return
	}
	p.judge(float64(waited-p.waited) / float64(now-p.at))
	p.at, p.waited = now, waited
}

func (p *pressure) judge(share float64) {
	if p.pressed {
		p.pressed = share > pressedFrom/2
	} else {
		p.pressed = share >= pressedFrom
	}
}

// Pressed reports whether the loop has waited for a processor for a good part of the
// time, lately. What is done then should cost few processor time rather than be spread
// over many.
func (l *Loop) Pressed() bool { return l.pressure.pressed }
