package mysql

import (
	"context"
	"errors"
	"slices"

	my "github.com/weirdb/weir/internal/backup/bulk/mysql"
	"github.com/weirdb/weir/internal/backup/restore"
)

// globals reads what belongs to no database: accounts with their grants, loadable functions and
// linked servers. A restore of a part of a cluster restores none of them.
func (r *runner) globals(ctx context.Context) (my.Globals, error) {
	if !r.Cluster() || r.opts.NoGlobals || !r.Has(my.GlobalsPath) {
		return my.Globals{}, nil
	}
	r.Plan(restore.Step{Phase: "globals", Object: "accounts"})
	if r.opts.DryRun {
		return my.Globals{}, nil
	}
	text, err := r.Text(ctx, my.GlobalsPath)
	return my.ParseGlobals(text), err
}

// accounts creates the accounts; their grants come last. It leaves existing accounts unchanged,
// except those that an interrupted run had created: the journal of the first database lists these.
// It writes the journal first, so that no account stays without its grants.
func (r *runner) accounts(ctx context.Context, all []*database, g my.Globals) error {
	if len(g.Accounts) == 0 {
		return nil
	}
	end := r.Phase("globals")
	defer end()
	m := accountMaker{runner: r}
	in := ""
	if len(all) > 0 {
		in, m.journal = all[0].target, all[0].journal
	}
	m.noted = in != ""
	var err error
	if m.s, err = r.connect(ctx, in); err != nil {
		return err
	}
	for _, a := range g.Accounts {
		if err = m.account(ctx, a); err != nil {
			break
		}
	}
	return errors.Join(err, m.s.Close())
}

// accountMaker creates accounts on one session.
type accountMaker struct {
	*runner
	s       *my.Session
	journal *restore.Journal
	noted   bool // it records steps in the journal
}

// taken are the server's errors about existing names: of accounts, loadable functions and
// servers.
var taken = []uint16{1396, 1125, 1476}

// notInForce is the server's error about an account that is in its table only.
const notInForce = 1133

func (m accountMaker) account(ctx context.Context, a my.Account) error {
	if a.Name == my.Public {
		m.grants = append(m.grants, a.Statements...)
		return nil
	}
	making, foreign := "making "+a.Name, "not making "+a.Name
	begun := m.journal.Has(making)
	if err := m.note(ctx, making); err != nil {
		return err
	}
	err := m.s.Exec(ctx, a.Statements[0])
	if my.ErrorCode(err) == notInForce {
		// An account by host name, on a server that does not resolve names.
		m.Warn("%s is in the server's table and not in force (skip_name_resolve?): it is left out", a.Title())
		return m.note(ctx, foreign)
	}
	switch there := slices.Contains(taken, my.ErrorCode(err)); {
	case there && (!begun || m.journal.Has(foreign)):
		m.Warn("%s exists already and is left as it is", a.Title())
		return m.note(ctx, foreign)
	case err != nil && !there:
		if my.ErrorCode(err) != 0 { // the server's: if it exists later, others have created it
			if err := m.note(ctx, foreign); err != nil {
				return err
			}
		}
		return m.failed(&restore.ObjectError{Object: a.Title(), Statement: restore.First(a.Statements[0], 200), Err: err})
	}
	m.grants = append(m.grants, a.Statements[1:]...)
	if err == nil && m.noted && m.journal.Has(foreign) { // not that one
		m.journal.Forget(foreign)
		return m.s.Exec(ctx, "DELETE FROM "+journalTable+" WHERE step = "+my.Literal(foreign))
	}
	return nil
}

// note records a step in the journal.
func (m accountMaker) note(ctx context.Context, step string) error {
	if !m.noted || m.journal.Has(step) {
		return nil
	}
	return m.s.Exec(ctx, note(step))
}

// grant runs the statements that need accounts and tables.
func (r *runner) grant(ctx context.Context) error {
	if len(r.grants) == 0 || r.opts.NoPrivileges {
		return nil
	}
	end := r.Phase("grants")
	defer end()
	s, err := r.connect(ctx, "")
	if err != nil {
		return err
	}
	for _, sql := range r.grants {
		if err := s.Exec(ctx, sql); err != nil {
			if err := r.failed(&restore.ObjectError{Object: "grants", Statement: restore.First(sql, 200), Err: err}); err != nil {
				return errors.Join(err, s.Close())
			}
		}
	}
	return s.Close()
}
