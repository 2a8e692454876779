package mysql

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/weirdb/weir/internal/backup/archive"
	my "github.com/weirdb/weir/internal/backup/bulk/mysql"
	"github.com/weirdb/weir/internal/wire/binlog"
)

// A LogTarget is where a replay ends: at most one of a time, a position and a transaction; the
// end of the log if none is given.
type LogTarget struct {
	Time     time.Time
	Position binlog.Position
	GTID     binlog.GTID
}

// A LogCheck is what CheckLog has found.
type LogCheck struct {
	Name         string `json:"name"`         // name of the log in the archive
	Segments     int    `json:"segments"`     // number of its segments
	Bytes        int64  `json:"bytes"`        // of log, not compressed
	Transactions int    `json:"transactions"` // number of transactions after the backup
	// End is how far the backup can be replayed, and EndTime when the last
	// transaction before that was committed; zero if there is none.
	End      string    `json:"end"`
	EndTime  time.Time `json:"end_time,omitzero"`  // when the last transaction before end was committed; left out if there is none
	Problems []string  `json:"problems,omitempty"` // what is missing or damaged

	// Until is the end of the last transaction before the target's position.
	Until binlog.Position `json:"-"`
}

// OK reports whether the log has no problems.
func (c *LogCheck) OK() bool { return len(c.Problems) == 0 }

// CheckLog reads a log from a position on, and reports what is damaged or missing, and whether
// a replay can end at a target.
func CheckLog(ctx context.Context, s archive.Storage, log Log, from binlog.Position, t LogTarget) (_ *LogCheck, err error) {
	c := &LogCheck{Name: log.Name, End: from.String(), Until: from}
	segments, err := my.ListLogs(ctx, s, log.Dir())
	if err != nil {
		return nil, err
	}
	for i := range segments { // from the last one that begins at the position or before
		if i+1 == len(segments) || compare(binlog.Position{File: segments[i+1].File, Pos: segments[i+1].Start}, from) > 0 {
			c.Segments++
		}
	}
	logs, err := my.OpenLogs(ctx, s, log.Dir(), from)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, logs.Close()) }()
	var tracker binlog.Tracker
	reached := t.Position.IsZero() && t.GTID.IsZero() || t.Position == from
	passed := reached && !t.Position.IsZero() // the log after the target is not needed
	for {
		e, err := logs.Next(ctx)
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		var step binlog.Step
		if err == nil {
			if !tracker.InTransaction() && e.Stored() && e.File == t.Position.File && e.Start() == t.Position.Pos {
				reached = true
			}
			step, err = tracker.Observe(e)
		}
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil && passed {
			break
		}
		if err != nil {
			c.Problems = append(c.Problems, err.Error())
			return c, nil
		}
		at := binlog.Position{File: e.File, Pos: e.End}
		c.Bytes += int64(e.Size)
		if !tracker.InTransaction() && e.Stored() {
			c.End = at.String()
			reached = reached || at == t.Position
		}
		if step == binlog.StepCommit {
			c.Transactions++
			c.EndTime = tracker.CommitTime()
			reached = reached || !t.GTID.IsZero() && tracker.GTID() == t.GTID
		}
		if step != binlog.StepNone && !t.Position.IsZero() && compare(at, t.Position) <= 0 {
			c.Until = at
		}
		passed = passed || reached && (!t.Position.IsZero() || !t.GTID.IsZero()) ||
			step == binlog.StepCommit && !t.Time.IsZero() && tracker.CommitTime().After(t.Time)
	}
	if !reached {
		c.Problems = append(c.Problems, c.missed(from, t))
	}
	return c, nil
}

// missed returns why a target is not reached.
func (c *LogCheck) missed(from binlog.Position, t LogTarget) string {
	if !t.GTID.IsZero() {
		return fmt.Sprintf("transaction %s is not in the archived log after the backup, from %s to %s", t.GTID, from, c.End)
	}
	if compare(t.Position, from) < 0 {
		return fmt.Sprintf("%s is before the backup, which is at %s", t.Position, from)
	}
	return fmt.Sprintf("%s is no end of a transaction in the archived log, from %s to %s; the last one before it is %s", t.Position, from, c.End, c.Until)
}
