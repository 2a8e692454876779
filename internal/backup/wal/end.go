package wal

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/weirdb/weir/internal/wire/pgrepl"
)

// endMark is the suffix of the notes beside the segments of a log. There is one for each
// timeline, with the position up to which it was archived: without it, the loss of the last
// segments would go unnoticed.
const endMark = ".end.json"

// logEnd is the content of a note.
type logEnd struct {
	Timeline uint32 `json:"timeline"`
	LSN      string `json:"lsn"`
}

// noteEnd records that a timeline is archived up to a position.
func (s *store) noteEnd(ctx context.Context, timeline uint32, at pgrepl.LSN) error {
	note, err := json.Marshal(logEnd{timeline, at.String()})
	if err == nil {
		err = s.storage.Put(ctx, fmt.Sprintf("%s%08X%s", s.dir(), timeline, endMark), append(note, '\n'))
	}
	if err != nil {
		return fmt.Errorf("note the end of the archived log: %w", err)
	}
	return nil
}

// ends reads the notes. Logs of earlier versions have none. problems lists the damaged ones.
func (s *store) ends(ctx context.Context) (ends map[uint32]pgrepl.LSN, problems []string, err error) {
	ends = map[uint32]pgrepl.LSN{}
	for o, err := range s.storage.List(ctx, s.dir(), false) {
		if err != nil {
			return nil, nil, fmt.Errorf("list log: %w", err)
		}
		if !strings.HasSuffix(o.Name, endMark) {
			continue
		}
		text, err := readSmall(ctx, s.storage, o.Name)
		if err != nil {
			return nil, nil, fmt.Errorf("read the end of the archived log: %w", err)
		}
		var end logEnd
		err = json.Unmarshal(text, &end)
		at, lsnErr := pgrepl.ParseLSN(end.LSN)
		if err != nil || lsnErr != nil || end.Timeline == 0 {
			problems = append(problems, fmt.Sprintf("%s, which says how far the log was archived, is damaged: remove it, the receiver writes it anew", o.Name))
			continue
		}
		ends[end.Timeline] = at
	}
	return ends, problems, nil
}

// whole compares the position up to which a chain was read with what was archived.
func (c *chain) whole(v *Verification, reached pgrepl.LSN) {
	last := c.line[len(c.line)-1].Timeline
	if c.ends[last] > reached {
		c.gap(v, reached, c.ends[last])
	}
	if c.newest > last && c.known[c.newest] {
		v.Problems = append(v.Problems, fmt.Sprintf("the log continues with timeline %d, which does not come from the backup: it can be replayed up to %s on timeline %d only; take a base backup of the server that is on timeline %[1]d, or remove %[4]s%08[1]X* if that was no more than a test of a restore",
			c.newest, reached, last, c.store.dir()))
	}
	for timeline, at := range c.ends {
		if timeline > last && !c.known[timeline] {
			v.Problems = append(v.Problems, fmt.Sprintf("timeline %d was archived up to %s, and its history is missing: nothing leads there", timeline, at))
		}
	}
}
