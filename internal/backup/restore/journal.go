package restore

import (
	"crypto/sha256"
	"fmt"
	"slices"
)

// A Journal has the steps that an earlier run of a restore has finished. They are stored in the
// target itself while a restore runs: each step records itself there, in the way of its engine.
// The steps are read once, before the jobs start. A nil *Journal has no steps.
type Journal struct{ done map[string]bool }

// StepRestored is the last step: after it, only the journal has to be removed.
const StepRestored = "restored"

// ErrEnded refuses to continue a restore that has ended while this one waited for its sessions,
// which it was not allowed to end.
var ErrEnded = Refuse("nothing to continue: the restore that this one waited for has ended, and the database is as complete as that one has reported")

// Identity returns the step that identifies the restore: the database of a backup, and the part
// of it that the options select.
func (o *Options) Identity(backup, database string) string {
	is := "backup " + backup + " database " + database
	f := o.Filter
	for _, list := range []*[]string{&f.Schemas, &f.ExcludeSchemas, &f.Tables, &f.ExcludeTables, &f.ExcludeTableData} {
		*list = slices.Sorted(slices.Values(*list))
	}
	if !f.Empty() || o.SchemaOnly || o.DataOnly {
		is += fmt.Sprintf(" part %x", sha256.Sum256(fmt.Appendf(nil, "%q %t %t", f, o.SchemaOnly, o.DataOnly)))
	}
	return is
}

// Add adds a step that the target has recorded.
func (j *Journal) Add(step string) {
	if j.done == nil {
		j.done = map[string]bool{}
	}
	j.done[step] = true
}

// Forget removes a step that has to be done again.
func (j *Journal) Forget(step string) { delete(j.done, step) }

// Has reports whether a step is finished.
func (j *Journal) Has(step string) bool { return j != nil && j.done[step] }

// Begun reports whether there is any step: the target has an interrupted restore.
func (j *Journal) Begun() bool { return j != nil && len(j.done) > 0 }

// Check refuses a journal that was found in place ("schema weir_restore", for example), unless
// --resume is set and it is that of the same part of the same database of the same backup.
func (j *Journal) Check(place, backup, database string, o *Options) error {
	if !o.Resume && !o.DryRun {
		return Refuse("an interrupted restore is in the database (%s): continue it with --resume, or drop the database and start over", place)
	}
	if j.Begun() && !j.Has(o.Identity(backup, database)) {
		return Refuse("the interrupted restore in the database (%s) is not of database %s of backup %s, or it is of another part of it, or of a part and by an older version of weir: --resume needs the same backup and the same flags, such as --table or --data-only; or drop what that restore has created, with %[1]s, and start over", place, database, backup)
	}
	return nil
}
