package backupcmd

import (
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/weirdb/weir/internal/backup/bulk"
	"github.com/weirdb/weir/internal/cli"
)

// How often progress is shown: as a bar on a terminal, as lines in a log.
const (
	barInterval  = 200 * time.Millisecond
	lineInterval = 5 * time.Second
)

// progressShow shows the progress of a run until it is stopped.
type progressShow struct {
	verb  string
	state *bulk.Progress
	out   io.Writer
	width func() int // of the terminal, in columns; nil: lines instead of a bar
	stop  chan struct{}
	ended sync.WaitGroup
	rate  rateMeter
}

// showProgress starts to show the state on out, as --progress says. The function that it
// returns ends that; it may be called twice.
func showProgress(verb, mode string, state *bulk.Progress, out io.Writer) (end func()) {
	p := &progressShow{verb: verb, state: state, out: out, stop: make(chan struct{})}
	width := terminalWidth(out)
	interval := lineInterval
	switch mode {
	case "none":
		return func() {}
	case "auto", "bar":
		if width == nil && mode == "bar" {
			width = func() int { return 80 }
		}
		if width != nil {
			p.width, interval = width, barInterval
		}
	}
	p.ended.Go(func() { p.run(interval) })
	return sync.OnceFunc(func() {
		close(p.stop)
		p.ended.Wait()
	})
}

// checkProgress validates --progress.
func checkProgress(mode string) error {
	if !slices.Contains([]string{"auto", "bar", "plain", "none"}, mode) {
		return fmt.Errorf("--progress %q: want auto, bar, plain or none", mode)
	}
	return nil
}

// terminalWidth returns a function that returns the width of the terminal w, or nil if w is not
// a terminal.
func terminalWidth(w io.Writer) func() int {
	f, ok := w.(*os.File)
	if !ok {
		return nil
	}
	ask := func() int {
		size, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ)
		if err != nil {
			return 0
		}
		if size.Col == 0 {
			return 80
		}
		return int(size.Col)
	}
	if ask() == 0 {
		return nil
	}
	return ask
}

func (p *progressShow) run(interval time.Duration) {
	p.rate.add(time.Now(), p.state.Snapshot().Bytes)
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		select {
		case <-p.stop:
			if p.width != nil {
				fmt.Fprint(p.out, "\r\x1b[K")
			}
			return
		case now := <-tick.C:
			s := p.state.Snapshot()
			rate := p.rate.add(now, s.Bytes)
			if p.width != nil {
				fmt.Fprint(p.out, "\r"+barLine(p.verb, s, rate, p.width()-1)+"\x1b[K")
				continue
			}
			if line := plainLine(p.verb, s, rate); line != "" {
				fmt.Fprintln(p.out, line)
			}
		}
	}
}

// rateMeter measures the rate over about the last ten seconds: the rate since the start would
// hide a stall.
type rateMeter struct {
	at    []time.Time
	bytes []int64
}

// add records a count and returns bytes per second.
func (r *rateMeter) add(now time.Time, bytes int64) float64 {
	r.at, r.bytes = append(r.at, now), append(r.bytes, bytes)
	for len(r.at) > 2 && now.Sub(r.at[0]) > 10*time.Second {
		r.at, r.bytes = r.at[1:], r.bytes[1:]
	}
	passed := now.Sub(r.at[0]).Seconds()
	if passed <= 0 {
		return 0
	}
	return float64(bytes-r.bytes[0]) / passed
}

// fraction returns how much is done, 0 to 1, by bytes if they are known. The total of a backup
// is an estimate, so it is less than 1 before the end.
func fraction(s bulk.Snapshot) float64 {
	switch {
	case s.TotalBytes > 0:
		return min(float64(s.Bytes)/float64(s.TotalBytes), 0.99)
	case s.TotalSteps > 0:
		return min(float64(s.Steps)/float64(s.TotalSteps), 0.99)
	}
	return 0
}

// left returns the estimated remaining time, or "" if unknown.
func left(s bulk.Snapshot, rate float64) string {
	if s.TotalBytes <= s.Bytes || rate <= 0 || s.Bytes == 0 {
		return ""
	}
	return durationText(time.Duration(float64(s.TotalBytes-s.Bytes) / rate * float64(time.Second)))
}

// barLine returns the line for a terminal, of at most width columns:
//
//	backup data  [=========>          ]  48%  1.2 GB  310 MB/s  4.1s left  public.orders
func barLine(verb string, s bulk.Snapshot, rate float64, width int) string {
	const cells = 20
	done := int(fraction(s) * cells)
	bar := strings.Repeat("=", done)
	if done < cells {
		bar += ">" + strings.Repeat(" ", cells-done-1)
	}
	line := fmt.Sprintf("%s %s  [%s] %3.0f%%  %s  %s/s", verb, s.Phase, bar, 100*fraction(s), cli.ByteText(s.Bytes), cli.ByteText(rate))
	if l := left(s, rate); l != "" {
		line += "  " + l + " left"
	}
	if len(s.Active) > 0 {
		line += "  " + strings.Join(s.Active, ", ")
	}
	if r := []rune(line); len(r) > max(width, 0) {
		line = string(r[:max(width, 0)])
	}
	return line
}

// plainLine returns the line for a log.
func plainLine(verb string, s bulk.Snapshot, rate float64) string {
	if s.Phase == "" {
		return ""
	}
	line := fmt.Sprintf("%s: %s, %s", verb, s.Phase, cli.ByteText(s.Bytes))
	if s.TotalBytes > s.Bytes { // an estimate, which may have been too low
		line += fmt.Sprintf(" of about %s", cli.ByteText(s.TotalBytes))
	}
	if s.TotalSteps > 0 {
		line += fmt.Sprintf(", %d of %d steps", s.Steps, s.TotalSteps)
	}
	if rate > 0 { // definitions and indexes move no bytes
		line += fmt.Sprintf(", %s/s", cli.ByteText(rate))
	}
	if l := left(s, rate); l != "" {
		line += ", about " + l + " left"
	}
	return line
}
