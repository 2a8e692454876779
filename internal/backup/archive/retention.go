package archive

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"
)

// A Policy says which backups to keep. Backups of one label, one server and one scope form a
// group, with partial ones apart from whole ones. The rules count within a group, from the
// newest: Daily keeps the newest backup of each of the last Daily days that have a backup, and
// so on. A backup is kept if any rule keeps it. A zero Policy keeps all.
type Policy struct {
	Last    int `json:"last,omitempty"`
	Daily   int `json:"daily,omitempty"`
	Weekly  int `json:"weekly,omitempty"` // ISO weeks
	Monthly int `json:"monthly,omitempty"`
	Yearly  int `json:"yearly,omitempty"`

	// Within keeps all backups that are younger. Default: 0, no such rule.
	Within time.Duration `json:"within,omitempty"`

	// Needed, if set, returns why a backup must be kept regardless of the rules, or "":
	// point-in-time restore keeps the base backups of its log this way.
	Needed func(Entry) string `json:"-"`
}

// A Decision is what happens to one backup, and why.
type Decision struct {
	Entry   Entry    `json:"entry"`   // the backup
	Keep    bool     `json:"keep"`    // whether it stays
	Reasons []string `json:"reasons"` // the rules that keep it, or why it is removed
}

// Plan applies a policy. It is pure: entries as List returns them, the time as an argument;
// days begin at midnight in the location of now. It always keeps the newest complete backup of
// each group, the parents of all backups that it keeps, and all incomplete backups, which
// RemoveOrphans handles. Decisions are in the order of entries.
func Plan(entries []Entry, policy Policy, now time.Time) []Decision {
	plan := make([]Decision, len(entries))
	type kind struct {
		label, scope string
		engine       Engine
		server       string // two servers may have databases of the same name
		partial      bool
	}
	groups := map[kind][]*Decision{}
	for i, e := range entries {
		plan[i].Entry = e
		if e.State != Complete {
			plan[i].keep("it is " + string(e.State))
			continue
		}
		k := kind{e.Summary.Label, e.Summary.Scope, e.Summary.Engine, e.Summary.Server.SystemID, e.Summary.Partial}
		groups[k] = append(groups[k], &plan[i])
	}
	for _, group := range groups {
		slices.SortFunc(group, func(a, b *Decision) int {
			return cmp.Or(b.Entry.Time.Compare(a.Entry.Time), strings.Compare(b.Entry.ID, a.Entry.ID))
		})
		group[0].keep("the newest of its label")
		for i, d := range group {
			policy.single(d, i, now)
		}
		for _, rule := range policy.periods() {
			rule.apply(group, now.Location())
		}
	}
	keepParents(plan)
	for i := range plan {
		if !plan[i].Keep {
			plan[i].Reasons = []string{"no rule keeps it"}
		}
	}
	return plan
}

func (d *Decision) keep(reason string) {
	d.Keep = true
	d.Reasons = append(d.Reasons, reason)
}

// single applies the rules that look at one backup; place counts from the newest.
func (p Policy) single(d *Decision, place int, now time.Time) {
	if p.Last == 0 && p.Daily == 0 && p.Weekly == 0 && p.Monthly == 0 && p.Yearly == 0 && p.Within == 0 {
		d.keep("no rule removes anything")
	}
	if place < p.Last {
		d.keep(fmt.Sprintf("last %d of %d", place+1, p.Last))
	}
	if age := now.Sub(d.Entry.Time); p.Within > 0 && age <= p.Within {
		d.keep(fmt.Sprintf("within %v", p.Within))
	}
	if p.Needed != nil {
		if why := p.Needed(d.Entry); why != "" {
			d.keep(why)
		}
	}
}

// periodRule keeps the newest backup of each of the last n periods that have one.
type periodRule struct {
	name string
	n    int
	of   func(time.Time) string
}

func (p Policy) periods() []periodRule {
	return []periodRule{
		{"daily", p.Daily, func(t time.Time) string { return t.Format("2006-01-02") }},
		{"weekly", p.Weekly, func(t time.Time) string {
			year, week := t.ISOWeek()
			return fmt.Sprintf("%d-W%02d", year, week)
		}},
		{"monthly", p.Monthly, func(t time.Time) string { return t.Format("2006-01") }},
		{"yearly", p.Yearly, func(t time.Time) string { return t.Format("2006") }},
	}
}

// apply goes through a group from the newest to the oldest.
func (r periodRule) apply(group []*Decision, zone *time.Location) {
	last, kept := "", 0
	for _, d := range group {
		period := r.of(d.Entry.Time.In(zone))
		if kept == r.n {
			return
		}
		if period == last {
			continue
		}
		last = period
		kept++
		d.keep(r.name + " " + period)
	}
}

// keepParents keeps, transitively, the backups on which kept ones depend.
func keepParents(plan []Decision) {
	byID := map[string]*Decision{}
	var queue []*Decision
	for i := range plan {
		byID[plan[i].Entry.ID] = &plan[i]
		if plan[i].Keep {
			queue = append(queue, &plan[i])
		}
	}
	for len(queue) > 0 {
		d := queue[0]
		queue = queue[1:]
		for _, id := range d.Entry.Summary.Parents {
			if p := byID[id]; p != nil && !p.Keep {
				p.keep("parent of " + d.Entry.ID)
				queue = append(queue, p)
			}
		}
	}
}
