-- For slurmctld: the users of Purser's leases submit and change no jobs themselves. Purser does it for them as root
-- (sbatch --uid), which passes. Put this file beside slurm.conf, name the users below, and set in slurm.conf
--   JobSubmitPlugins=lua
-- then `scontrol reconfigure`. See docs/backends.md, "slurm".

-- By number, as `id -u purser-lease` tells it: when a job is changed slurmctld gives no name.
local JOB_USERS = { [1234] = true }

local ROOT = 0

local function refuse(what)
	slurm.log_user("Jobs of this user are " .. what .. " by Purser alone.")
	return slurm.ESLURM_ACCESS_DENIED
end

function slurm_job_submit(job, partitions, submitter)
	if submitter ~= ROOT and JOB_USERS[job.user_id] then
		return refuse("submitted")
	end
	return slurm.SUCCESS
end

function slurm_job_modify(change, job, partitions, modifier)
	if modifier ~= ROOT and JOB_USERS[job.user_id] then
		return refuse("changed")
	end
	return slurm.SUCCESS
end

return slurm.SUCCESS
