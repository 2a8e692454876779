package pgrepl

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"strconv"
	"strings"
)

// System is the response to IDENTIFY_SYSTEM.
type System struct {
	// ID is the system identifier, shared by a cluster and its standbys.
	ID       string
	Timeline uint32
	// Flushed is the end of the log on the server's disk.
	Flushed LSN
	// Database is "" in mode Physical.
	Database string
}

// Identify returns the cluster's identifier and the end of its log. Like every replication
// command, it needs mode Logical or Physical.
func (c *Conn) Identify(ctx context.Context) (System, error) {
	s, err := c.identify(ctx)
	if err != nil {
		return System{}, fmt.Errorf("identify system: %w", err)
	}
	return s, nil
}

func (c *Conn) identify(ctx context.Context) (System, error) {
	row, err := c.queryOne(ctx, "IDENTIFY_SYSTEM", 4)
	if err != nil {
		return System{}, err
	}
	s := System{ID: string(row[0]), Database: string(row[3])}
	if s.Timeline, err = parseTimeline(row[1]); err != nil {
		return System{}, err
	}
	s.Flushed, err = ParseLSN(string(row[2]))
	return s, err
}

func parseTimeline(text []byte) (uint32, error) {
	n, err := strconv.ParseUint(string(text), 10, 32)
	if err != nil {
		return 0, fmt.Errorf("timeline %q: %w", text, err)
	}
	return uint32(n), nil
}

// Show returns the value of a setting as SHOW prints it, with its unit.
func (c *Conn) Show(ctx context.Context, setting string) (string, error) {
	if strings.ContainsAny(setting, "\"' ;\x00") || setting == "" {
		return "", fmt.Errorf("show %q: not the name of a setting", setting)
	}
	row, err := c.queryOne(ctx, "SHOW "+setting, 1)
	if err != nil {
		return "", fmt.Errorf("show %s: %w", setting, err)
	}
	return string(row[0]), nil
}

// SegmentSize returns wal_segment_size in bytes.
func (c *Conn) SegmentSize(ctx context.Context) (int64, error) {
	s, err := c.Show(ctx, "wal_segment_size")
	if err != nil {
		return 0, err
	}
	size, err := parseSize(s)
	if err == nil {
		err = checkSegmentSize(size)
	}
	if err != nil {
		return 0, fmt.Errorf("show wal_segment_size: %w", err)
	}
	return size, nil
}

// parseSize parses a size as SHOW prints it, and returns bytes.
func parseSize(s string) (int64, error) {
	digits := strings.TrimRight(s, "BkMGT")
	n, err := strconv.ParseInt(digits, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("size %q: %w", s, err)
	}
	shift, ok := map[string]int{"": 0, "B": 0, "kB": 10, "MB": 20, "GB": 30, "TB": 40}[s[len(digits):]]
	if !ok || n < 0 || n > 1<<62>>shift {
		return 0, fmt.Errorf("size %q: not a size that SHOW prints", s)
	}
	return n << shift, nil
}

// History is the history file of a timeline.
type History struct {
	Timeline uint32
	Name     string // of the file, such as "00000002.history"
	Content  []byte
}

// TimelineHistory fetches the history file of a timeline. Timeline 1 has none.
func (c *Conn) TimelineHistory(ctx context.Context, timeline uint32) (History, error) {
	row, err := c.queryOne(ctx, fmt.Sprintf("TIMELINE_HISTORY %d", timeline), 2)
	if err != nil {
		return History{}, fmt.Errorf("fetch history of timeline %d: %w", timeline, err)
	}
	h := History{Timeline: timeline, Name: string(row[0]), Content: row[1]}
	if want := fmt.Sprintf("%08X.history", timeline); h.Name != want {
		return History{}, fmt.Errorf("fetch history of timeline %d: the server sends %q instead of %s", timeline, h.Name, want)
	}
	return h, nil
}

// Ancestor is a timeline from which another one descends.
type Ancestor struct {
	Timeline uint32
	// End is where the timeline was left: the log after it belongs to the next one.
	End LSN
}

// Ancestors parses the file: it returns the timelines from the first to the immediate ancestor.
func (h History) Ancestors() ([]Ancestor, error) {
	var list []Ancestor
	for s := bufio.NewScanner(bytes.NewReader(h.Content)); s.Scan(); {
		fields := strings.Fields(s.Text())
		if len(fields) == 0 || strings.HasPrefix(fields[0], "#") {
			continue
		}
		if len(fields) < 2 {
			return nil, fmt.Errorf("history of timeline %d: line %q has no position", h.Timeline, s.Text())
		}
		timeline, err := parseTimeline([]byte(fields[0]))
		if err != nil {
			return nil, fmt.Errorf("history of timeline %d: %w", h.Timeline, err)
		}
		end, err := ParseLSN(fields[1])
		if err != nil {
			return nil, fmt.Errorf("history of timeline %d: %w", h.Timeline, err)
		}
		if n := len(list); timeline >= h.Timeline || n > 0 && timeline <= list[n-1].Timeline {
			return nil, fmt.Errorf("history of timeline %d: timeline %d is out of order", h.Timeline, timeline)
		}
		list = append(list, Ancestor{Timeline: timeline, End: end})
	}
	return list, nil
}
