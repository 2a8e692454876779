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

// A Target says where the replay of the log ends. The zero value is the end of the log.
type Target struct {
	// At most one of these is set.
	Time      time.Time
	LSN       pgrepl.LSN
	Name      string // of pg_create_restore_point
	Immediate bool   // as soon as the base backup is consistent
	// Exclusive ends the replay just before the target. It applies to Time and LSN. Default:
	// false.
	Exclusive bool
	// Timeline is latest, current (the backup's own) or a number. Default: latest.
	Timeline string
	// Action is what the server does when it reaches the target: promote, pause or shutdown.
	// Default: promote.
	Action string
}

// set returns how many targets are set.
func (t Target) set() int {
	n := 0
	for _, is := range []bool{!t.Time.IsZero(), t.LSN != 0, t.Name != "", t.Immediate} {
		if is {
			n++
		}
	}
	return n
}

// Validate returns an error that names the invalid flag.
func (t Target) Validate() error {
	timeline, err := strconv.ParseUint(t.Timeline, 10, 32)
	switch {
	case t.set() > 1:
		return errors.New("--target-time, --target-lsn, --target-name, --target-immediate: one of them")
	case t.Exclusive && t.Time.IsZero() && t.LSN == 0:
		return errors.New("--target-exclusive needs --target-time or --target-lsn")
	case !slices.Contains([]string{"", "latest", "current"}, t.Timeline) && (err != nil || timeline == 0):
		return fmt.Errorf("--target-timeline %q: want latest, current or a number", t.Timeline)
	case !slices.Contains([]string{"", "promote", "pause", "shutdown"}, t.Action):
		return fmt.Errorf("--target-action %q: want promote, pause or shutdown", t.Action)
	case len(t.Name) > 63 || strings.ContainsAny(t.Name, "\r\n\x00"):
		return errors.New("--target-name: one line of at most 63 bytes")
	}
	return nil
}

// settings returns the server's recovery settings. It sets all targets, so that those that an
// earlier recovery left in the configuration have no effect.
func (t Target) settings(restoreCommand string) [][2]string {
	timeline, action := t.Timeline, t.Action
	if timeline == "" {
		timeline = "latest"
	}
	if n, err := strconv.ParseUint(timeline, 10, 32); err == nil {
		timeline = strconv.FormatUint(n, 10) // the server parses a number with a leading 0 as octal
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
	// If an empty target follows one that is set, the server reports several targets.
	slices.SortStableFunc(all[4:], func(a, b [2]string) int { return min(len(a[1]), 1) - min(len(b[1]), 1) })
	return all
}

// before returns why a base backup is too young for the target, or "".
func (t Target) before(s archive.Summary) (string, error) {
	stop, err := pgrepl.ParseLSN(s.Position.LSN)
	if err != nil {
		return "", fmt.Errorf("read manifest of %s: %w", s.ID, err)
	}
	switch {
	case !t.Time.IsZero() && t.Time.Before(s.Position.Time):
		return fmt.Sprintf("backup %s was not complete before %s", s.ID, s.Position.Time.Format(time.RFC3339)), nil
	case t.LSN != 0 && t.LSN < stop:
		return fmt.Sprintf("backup %s is not consistent before %s", s.ID, stop), nil
	}
	return "", nil
}

// on returns why the target's timeline cannot be reached from a base backup, or "". known are
// the histories of its cluster.
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

// timeline returns the timeline that the replay of a base backup ends on.
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
		for _, h := range known { // in ascending order, so the newest wins
			if h.timeline > wanted && leaves(h.line, own, stop) >= 0 {
				wanted = h.timeline
			}
		}
		return wanted, nil
	}
	n, err := strconv.ParseUint(t.Timeline, 10, 32)
	return uint32(n), err
}

// serversLatest returns the timeline that a server takes for the latest one: it looks for
// history files in ascending order and stops where one is missing.
func serversLatest(own uint32, known []history) uint32 {
	for _, h := range known {
		if h.timeline == own+1 {
			own = h.timeline
		}
	}
	return own
}

// ForServer returns the target to configure on a server. A server that looks for the latest
// timeline stops at the first number without an archived history, such as that of a server that
// was promoted and failed before a receiver saw it. So "latest" becomes the number of the
// timeline.
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

// ChooseBase returns the ID of the newest base backup in a repository from which a target can
// be reached. label, if not empty, restricts the choice; backups of several clusters may have
// the same label. log holds the archived log, which is read if the target is a name, because
// only the log says when that was created. keys decrypt the log.
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
		return "", fmt.Errorf("%s holds no complete base backup from which the target can be reached%s; weir backup list shows all backups", repo, reason)
	case t.Name != "":
		return t.named(ctx, repo, log, fit, known, keys)
	}
	return fit[len(fit)-1].ID, nil
}

// histories returns the histories of a cluster's timelines, in ascending order.
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
