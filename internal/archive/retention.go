package archive

import "time"

// A Policy says which backups to keep. Numbers count within one label, from the
// newest: of each of the last Daily days that have a backup the newest of that
// day is kept, and so on. What any rule keeps is kept. A zero Policy keeps all.
type Policy struct {
	Last    int `json:"last,omitempty"`
	Daily   int `json:"daily,omitempty"`
	Weekly  int `json:"weekly,omitempty"` // ISO weeks
	Monthly int `json:"monthly,omitempty"`
	Yearly  int `json:"yearly,omitempty"`

	// Within keeps everything that is younger. Default: 0, no such rule.
	Within time.Duration `json:"within,omitempty"`

	// Needed, when set, returns why a backup must stay whatever the rules say,
	// or "": a chain for point-in-time restore asks for its base this way.
	Needed func(Entry) string `json:"-"`
}

// A Decision is what becomes of one backup, and why.
type Decision struct {
	Entry   Entry    `json:"entry"`
	Keep    bool     `json:"keep"`
	Reasons []string `json:"reasons"` // the rules that keep it; or why it goes
}

// Plan applies a policy. It is pure: entries as List returns them, the time as an
// argument; days begin at midnight in the location of now. Whatever the policy
// says, it keeps the newest complete backup of each label, the parents of all
// that it keeps, and everything that is not complete, which is for
// RemoveOrphans to judge.
func Plan(entries []Entry, policy Policy, now time.Time) []Decision {
	return nil
}
