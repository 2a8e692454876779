package wal

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/weirdb/weir/internal/backup/archive"
	"github.com/weirdb/weir/internal/wire/pgrepl"
)

// A Target says where the replay of the log ends. Its zero value is the end of the
// log.
type Target struct {
	// At most one of these.
	Time      time.Time
	LSN       pgrepl.LSN
	Name      string // of pg_create_restore_point
	Immediate bool   // as soon as the base backup is consistent
	// Exclusive ends before the target. It is for Time and LSN. Default: false.
	Exclusive bool
	// Timeline is latest, current (the backup's own) or a number. Default: latest.
	Timeline string
	// Action is what the server does when it is there: promote, pause or
	// shutdown. Default: promote.
	Action string
}

// set counts the targets.
func (t Target) set() int {
	n := 0
	for _, is := range []bool{!t.Time.IsZero(), t.LSN != 0, t.Name != "", t.Immediate} {
		if is {
			n++
		}
	}
	return n
}

// Validate names the flag that is wrong.
func (t Target) Validate() error {
	timeline, err := strconv.ParseUint(t.Timeline, 10, 32)
	switch {
	case t.set() > 1:
		return errors.New("--target-time, --target-lsn, --target-name, --target-immediate: one of them")
	case t.Exclusive && t.Time.IsZero() && t.LSN == 0:
		return errors.New("--target-exclusive is about --target-time and --target-lsn")
	case !slices.Contains([]string{"", "latest", "current"}, t.Timeline) && (err != nil || timeline == 0):
		return fmt.Errorf("--target-timeline %q: want latest, current or a number", t.Timeline)
	case !slices.Contains([]string{"", "promote", "pause", "shutdown"}, t.Action):
		return fmt.Errorf("--target-action %q: want promote, pause or shutdown", t.Action)
	case len(t.Name) > 63 || strings.ContainsAny(t.Name, "\r\n\x00"):
		return errors.New("--target-name: one line of at most 63 bytes")
	}
	return nil
}

// settings are the server's, all of its targets: what an earlier recovery has left
// in the configuration must not count.
func (t Target) settings(restoreCommand string) [][2]string {
	timeline, action := t.Timeline, t.Action
	if timeline == "" {
		timeline = "latest"
	}
	if n, err := strconv.ParseUint(timeline, 10, 32); err == nil {
		timeline = strconv.FormatUint(n, 10) // the server reads one that begins with 0 as octal
	}
	if action == "" {
		action = "promote"
	}
	if t.set() == 0 {
		action = "pause" // the server's default; at the end of the log it promotes
	}
	at, lsn, immediate := "", "", ""
	if !t.Time.IsZero() {
		at = t.Time.UTC().Format("2006-01-02 15:04:05.999999") + "+00"
	}
	if t.LSN != 0 {
		lsn = t.LSN.String()
	}
	if t.Immediate {
		immediate = "immediate"
	}
	all := [][2]string{
		{"restore_command", restoreCommand},
		{"recovery_target_inclusive", strconv.FormatBool(!t.Exclusive)},
		{"recovery_target_timeline", timeline},
		{"recovery_target_action", action},
		{"recovery_target_xid", ""},
		{"recovery_target", immediate},
		{"recovery_target_time", at},
		{"recovery_target_lsn", lsn},
		{"recovery_target_name", t.Name},
	}
	// The server takes an empty target behind one that is set for a second one.
	slices.SortStableFunc(all[4:], func(a, b [2]string) int { return min(len(a[1]), 1) - min(len(b[1]), 1) })
	return all
}

// before reports why a base backup is too young for a target, "" if it is not.
func (t Target) before(s archive.Summary) (string, error) {
	stop, err := pgrepl.ParseLSN(s.Position.LSN)
	if err != nil {
		return "", fmt.Errorf("read manifest of %s: %w", s.ID, err)
	}
	switch {
	case !t.Time.IsZero() && t.Time.Before(s.Position.Time):
		return fmt.Sprintf("backup %s was complete at %s only", s.ID, s.Position.Time.Format(time.RFC3339)), nil
	case t.LSN != 0 && t.LSN < stop:
		return fmt.Sprintf("backup %s is consistent from %s on only", s.ID, stop), nil
	}
	return "", nil
}

// on reports why the target's timeline cannot be reached from a base backup, "" if it
// can. known are the histories of its cluster.
func (t Target) on(s archive.Summary, known []history) (string, error) {
	stop, err := pgrepl.ParseLSN(s.Position.LSN)
	if err != nil {
		return "", fmt.Errorf("read manifest of %s: %w", s.ID, err)
	}
	own := uint32(s.Position.Timeline)
	wanted, err := t.timeline(s, known)
	if err != nil {
		return "", err
	}
	if wanted == own || slices.ContainsFunc(known, func(h history) bool { return h.timeline == wanted && leaves(h.line, own, stop) >= 0 }) {
		return "", nil
	}
	return fmt.Sprintf("backup %s, of timeline %d, is not on the way to timeline %d", s.ID, own, wanted), nil
}

// timeline is the one that the replay of a base backup is to reach.
func (t Target) timeline(s archive.Summary, known []history) (uint32, error) {
	own := uint32(s.Position.Timeline)
	switch t.Timeline {
	case "current":
		return own, nil
	case "", "latest":
		stop, err := pgrepl.ParseLSN(s.Position.LSN)
		if err != nil {
			return 0, fmt.Errorf("read manifest of %s: %w", s.ID, err)
		}
		wanted := serversLatest(own, known)
		for _, h := range known { // in order, so that the newest wins
			if h.timeline > wanted && leaves(h.line, own, stop) >= 0 {
				wanted = h.timeline
			}
		}
		return wanted, nil
	}
	n, err := strconv.ParseUint(t.Timeline, 10, 32)
	return uint32(n), err
}

// serversLatest is the timeline that a server takes for the latest one: it looks for the
// histories of one number after the other, and ends where there is none.
func serversLatest(own uint32, known []history) uint32 {
	for _, h := range known {
		if h.timeline == own+1 {
			own = h.timeline
		}
	}
	return own
}

// ForServer returns the target as a server is to be told it. One that looks for the latest
// timeline does not get past a number whose history is not archived, as that of a server
// that was promoted and failed before a receiver met it: it gets the number of the latest.
func (t Target) ForServer(ctx context.Context, storage archive.Storage, m *archive.Manifest, keys archive.ReadOptions) (Target, error) {
	if t.Timeline != "" && t.Timeline != "latest" {
		return t, nil
	}
	known, err := histories(ctx, storage, m.Server.SystemID, keys)
	if err != nil {
		return t, err
	}
	wanted, err := t.timeline(m.Summary, known)
	if err == nil && wanted != serversLatest(uint32(m.Position.Timeline), known) {
		t.Timeline = strconv.FormatUint(uint64(wanted), 10)
	}
	return t, err
}

// ChooseBase returns the id of the newest base backup of a repository from which a
// target can be reached. label restricts the choice where it is not empty; backups of
// two clusters may have one. The archived log is in log; it is read where the target is
// a name, as nothing else tells when that was given. keys open the log.
func ChooseBase(ctx context.Context, repo *archive.Repository, log archive.Storage, label string, t Target, keys archive.ReadOptions) (string, error) {
	entries, err := archive.List(ctx, repo, time.Now())
	if err != nil {
		return "", err
	}
	entries = slices.DeleteFunc(entries, func(e archive.Entry) bool {
		return e.State != archive.Complete || e.Summary.Scope != ScopeBase || label != "" && e.Summary.Label != label
	})
	systems := map[string]bool{}
	for _, e := range entries {
		systems[e.Summary.Server.SystemID] = true
	}
	if len(systems) > 1 {
		return "", fmt.Errorf("%s holds base backups of %d clusters: name one by its ID", repo, len(systems))
	}
	var known []history
	for system := range systems {
		if known, err = histories(ctx, log, system, keys); err != nil {
			return "", err
		}
	}
	reason := ""
	var fit []archive.Summary
	for _, e := range entries {
		why, err := t.before(e.Summary)
		if err == nil && why == "" {
			why, err = t.on(e.Summary, known)
		}
		if err != nil {
			return "", err
		}
		if why != "" {
			reason = "; " + why
			continue
		}
		fit = append(fit, e.Summary)
	}
	switch {
	case len(fit) == 0:
		return "", fmt.Errorf("%s holds no complete base backup from which that can be reached%s; weir backup list shows what there is", repo, reason)
	case t.Name != "":
		return t.named(ctx, repo, log, fit, known, keys)
	}
	return fit[len(fit)-1].ID, nil
}

// histories are those of a cluster's timelines, in order.
func histories(ctx context.Context, storage archive.Storage, system string, keys archive.ReadOptions) ([]history, error) {
	s, err := openStore(ctx, storage, system)
	if errors.Is(err, errNoLog) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	_, files, err := s.list(ctx)
	if err != nil || len(files) == 0 {
		return nil, err
	}
	if keys, err = s.keys(ctx, keys); err != nil {
		return nil, err
	}
	return s.ancestors(ctx, files, keys)
}
