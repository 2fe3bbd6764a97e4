package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/headroom-go/headroom/device"
	"github.com/headroom-go/headroom/internal/size"
	"github.com/headroom-go/headroom/internal/spill"
)

// lendFlags say what is lent, and to whom.
type lendFlags struct {
	bytes  uint64
	listen string
	grace  time.Duration
	keep   sizeFlag
	mpi    bool // to ranks of the same MPI job, without the three above
}

func lendCommand() *cobra.Command {
	var f lendFlags
	cmd := &cobra.Command{
		Use:   "lend SIZE",
		Short: "Lend memory of this machine to trainings on others",
		Long: `Lend lends so much of this machine's memory to who trains elsewhere with
--away SIZE,tcp://HOST:PORT, and says who has how much of it. A borrower's memory
is taken as it is written to, is nobody else's, and is this machine's again when the
borrower's run ends.

With --keep it looks every second at how much memory this machine has available. While
that is less, it calls back as much as is missing, from the newest loan first, and
lends no more until there is room again.

Ctrl-C calls all memory back. Borrowers fetch what is theirs, for which they have
--grace, and go on with what is left to them. A second Ctrl-C ends at once: steps that
had values here are done again.

Nothing is encrypted, and whoever reaches the address may borrow: it is for networks
that are trusted. It answers only to this machine unless --listen says otherwise.

With --mpi it is a rank of an MPI job that does not train, but lends to those that do
(--away SIZE,mpi), each of which has an equal part of what all such ranks lend. It ends
with them, and calls nothing back.`,
		Example: `  headroom lend 64GiB --listen 10.0.0.7:9402
  headroom lend 64GiB --listen 10.0.0.7:9402 --keep 8GiB
  headroom train --device cuda:0,8GiB --away 64GiB,tcp://10.0.0.7:9402
  mpirun -n 2 headroom train --device cuda:0,8GiB --away 32GiB,mpi : -n 1 headroom lend 64GiB --mpi`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 {
				return usagef("lend needs one size, as in headroom lend 16GiB")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			f.bytes, err = size.Parse(args[0])
			if err == nil && f.bytes == 0 {
				err = fmt.Errorf("0 bytes are nothing to lend")
			}
			if err != nil {
				return usageError{err}
			}
			if f.grace <= 0 {
				return usagef("--grace %v: borrowers need time to fetch what is theirs; a second Ctrl-C ends loans at once", f.grace)
			}
			if !f.mpi {
				return f.lend(cmd.Context(), cmd.OutOrStdout())
			}
			if slices.ContainsFunc([]string{"listen", "grace", "keep"}, cmd.Flags().Changed) {
				return usagef("--mpi listens nowhere and calls nothing back: leave --listen, --grace and --keep out")
			}
			return f.lendMPI(cmd.Context(), cmd.OutOrStdout())
		},
	}
	fl := cmd.Flags()
	fl.StringVar(&f.listen, "listen", "127.0.0.1:9402", "`ADDRESS` to listen at; a port alone is on 127.0.0.1, and port 0 any that is free")
	fl.DurationVar(&f.grace, "grace", 30*time.Second, "`TIME` that borrowers have to fetch what is theirs")
	fl.Var(&f.keep, "keep", "call loans back while less than SIZE of this machine's memory is available")
	fl.BoolVar(&f.mpi, "mpi", false, "lend to the ranks of this MPI job that train, until they end")
	return cmd
}

// lend lends until ctx ends and borrowers have fetched what is theirs.
func (f *lendFlags) lend(ctx context.Context, w io.Writer) error {
	if err := available(f.bytes, uint64(f.keep)); err != nil {
		return err
	}
	address, err := addressOf("--listen", f.listen)
	if err != nil {
		return err
	}
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return usagef("--listen %s: %w", address, err)
	}
	defer listener.Close()
	kept := ""
	if f.keep > 0 {
		kept = ", and keeps " + size.Format(uint64(f.keep)) + " available"
	}
	if err := fact(w, "lends", "%s at tcp://%s%s", size.Format(f.bytes), listener.Addr(), kept); err != nil {
		return err
	}
	return spill.Lend(ctx, listener, spill.LendOptions{Bytes: f.bytes, Grace: f.grace, Keep: uint64(f.keep), Available: device.AvailableMemory, Notify: func(c spill.LoanChange) {
		fact(w, "loan", "%s; %s of %s are lent", loanText(c), size.Format(c.LentNow), size.Format(f.bytes))
	}})
}

// loanText says what happened to a loan.
func loanText(c spill.LoanChange) string {
	verb := [...]string{spill.LoanBegan: "borrows", spill.LoanRecalled: "is asked to give back", spill.LoanShrank: "gave back", spill.LoanEnded: "gave back"}[c.What]
	text := fmt.Sprintf("%s %s %s", c.Borrower, verb, size.Format(c.Bytes))
	if c.After > 0 {
		text += fmt.Sprintf(", %v after they were called back", c.After.Round(100*time.Microsecond))
	}
	if c.Err != nil {
		text += fmt.Sprintf(" (%v)", c.Err)
	}
	return text
}

// lendMPI lends until the ranks of the job that train have ended. Those who end the job
// with a signal send it to all, and trainings then finish their step: so the first one
// changes nothing here.
func (f *lendFlags) lendMPI(ctx context.Context, out io.Writer) error {
	w, err := worldOf(os.Getenv)
	if err != nil {
		return usageError{err}
	}
	if w.size < 2 {
		return usagef("--mpi lends to ranks of the same MPI job: start it with them, as in mpirun -n 2 headroom train … : -n 1 headroom lend 64GiB --mpi")
	}
	if err := available(f.bytes, 0); err != nil {
		return err
	}
	m, err := startMPI(ctx, w, f.bytes)
	if err != nil {
		return err
	}
	_, trains, _ := m.Place()
	if trains == 0 {
		return errors.Join(usagef("all %d ranks of this MPI job lend, and none trains", m.Size()), m.Close(true))
	}
	if err := fact(out, "lends", "%s as rank %d of %d, to %d that train", size.Format(f.bytes), m.Rank(), m.Size(), trains); err != nil {
		return err
	}
	err = m.Lend()
	return errors.Join(err, m.Close(err == nil))
}

// available refuses to lend what the machine has not, and to keep all that it has.
func available(bytes, keep uint64) error {
	has, err := device.AvailableMemory()
	if err != nil {
		return err
	}
	if bytes > has {
		return usagef("%s to lend: this machine has %s available", size.Format(bytes), size.Format(has))
	}
	if keep >= has {
		return usagef("--keep %s leaves nothing to lend: this machine has %s available", size.Format(keep), size.Format(has))
	}
	return nil
}
